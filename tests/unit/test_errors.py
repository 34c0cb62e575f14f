"""The error tree is the one that is drawn, and each error says how a process ends."""

import inspect
import re

import pytest

from headrace import errors
from headrace.errors import HeadraceError

CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, Exception) and not name.startswith("_")
}


def drawn():
    """(name, parent) for each line of the tree in the module's docstring."""
    above = {}
    for line in errors.__doc__.splitlines():
        if found := re.match(r"^([│├└─ ]*)([A-Z]\w+)(?:\s{2,}|$)", line):
            depth = len(found[1]) // 4
            above[depth] = found[2]
            yield found[2], above.get(depth - 1)


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    parents = {name: None if cls is HeadraceError else cls.__base__.__name__ for name, cls in CLASSES.items()}
    assert dict(drawn()) == parents


def test_the_drawing_names_each_error_once():
    names = [name for name, _ in drawn()]
    assert sorted(names) == sorted(CLASSES)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("HeadraceError", 1),
        ("RetriableError", 1),
        ("BadRecord", 1),
        ("ConfigError", 2),
        ("UnsupportedGuarantee", 2),
        ("OffsetConflict", 3),
        ("DataLoss", 4),
    ],
)
def test_exit_codes_are_the_documented_ones(name, code):
    assert CLASSES[name].exit_code == code


def test_no_error_is_without_a_documented_exit_code():
    assert {cls.exit_code for cls in CLASSES.values()} == {1, 2, 3, 4}


@pytest.mark.parametrize("cls", CLASSES.values(), ids=lambda cls: cls.__name__)
def test_every_error_carries_message_and_hint_and_says_when_it_is_raised(cls):
    error = cls("what is wrong", hint="what to type")
    assert str(error) == error.message == "what is wrong"
    assert error.hint == "what to type"
    assert cls("without").hint is None
    assert "Raised" in cls.__doc__ or cls is HeadraceError
