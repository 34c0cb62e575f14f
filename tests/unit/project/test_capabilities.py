"""Every capability on the lists has a test that is there and is not skipped, or a reason; or both, for a part of it."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from support.project import ROOT

SHOWN = tomllib.loads((ROOT / "tests" / "capabilities.toml").read_text())
LISTS = {
    "kafka": {"K": range(1, 14), "P": range(1, 27), "C": (*range(6, 10), 14, *range(17, 35))},
    "direct": {"L": range(1, 15), "E": range(1, 7), "B": range(1, 15), "P": range(1, 6)},
}
WANTED = [
    f"{name}:{letter}{number}"
    for name, letters in LISTS.items()
    for letter, numbers in letters.items()
    for number in numbers
]
SKIPS = frozenset({"skip", "skipif", "xfail", "importorskip"})
PLUGIN = ROOT / "src" / "headrace" / "testing" / "fixtures.py"


@cache
def parsed(file):
    return ast.parse(Path(file).read_text())


def functions_of(file):
    return {node.name: node for node in parsed(file).body if isinstance(node, ast.FunctionDef)}


def names_in(node):
    return {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node)}


def marks_of(file):
    """Names at the top of a file that stand for a mark which skips: `needs_root = pytest.mark.skipif(…)`."""
    found = set(SKIPS)
    for node in parsed(file).body:
        if isinstance(node, ast.Assign) and names_in(node.value) & found:
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def whole_file_skips(file):
    """By `pytestmark`, or by a call at its top."""
    if "pytestmark" in marks_of(file):
        return True
    calls = [node for node in parsed(file).body if isinstance(node, ast.Expr | ast.If | ast.Try)]
    return any(names_in(node) & SKIPS for node in calls)


def places_of_functions(file):
    """Where a test and pytest look for functions: its file, the files that it imports from, conftest.py upwards."""
    yield file
    for node in parsed(file).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            below = ROOT / "tests" / Path(*node.module.split(".")).with_suffix(".py")
            if below.exists():
                yield below
    for folder in Path(file).parents:
        if folder.is_relative_to(ROOT) and (folder / "conftest.py").exists():
            yield folder / "conftest.py"
    if PLUGIN.exists():
        yield PLUGIN


def around(file):
    """The functions that a test may use, by name, with the file that each is in; the nearest counts."""
    found = {}
    for place in places_of_functions(file):
        for name, node in functions_of(place).items():
            found.setdefault(name, (place, node))
    return found


def is_fixture(node):
    return any("fixture" in names_in(mark) for mark in node.decorator_list)


def skips(file, test):
    """Whether something in a test or around it could skip it: its marks, its file, what it asks for, what it calls."""
    why = ["pytestmark"] if whole_file_skips(file) else []
    known, seen, left = around(file), set(), [(file, test)]
    for place, node in known.values():
        automatic = is_fixture(node) and any("autouse" in ast.dump(mark) for mark in node.decorator_list)
        if automatic and (place == file or place.name == "conftest.py"):
            left.append((place, node))
    while left:
        place, node = left.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        names = names_in(node)
        why += [f"{node.name}: {name}" for name in sorted(names & marks_of(place))]
        asked = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
        used = [mark for mark in node.decorator_list if "usefixtures" in names_in(mark)]
        asked |= {one.value for mark in used for one in ast.walk(mark) if isinstance(one, ast.Constant)}
        left += [known[name] for name in asked if name in known and is_fixture(known[name][1])]
        left += [known[name] for name in names if name in known and not is_fixture(known[name][1])]
    return why


def test_every_capability_is_on_the_list_and_no_other():
    assert list(SHOWN) == WANTED


@pytest.mark.parametrize("capability", SHOWN)
def test_a_capability_has_tests_that_are_there_and_not_skipped_or_a_reason(capability):
    shown = SHOWN[capability]
    if isinstance(shown, dict):
        assert set(shown) <= {"tests", "reason"}
        assert len(shown["reason"].split()) > 15, "a reason that a user would accept"
        shown = shown.get("tests", [])
    for name in [shown] if isinstance(shown, str) else shown:
        file, _, test = name.partition("::")
        assert test.startswith("test_")
        assert test in functions_of(ROOT / file), name
        assert skips(ROOT / file, functions_of(ROOT / file)[test]) == [], "a skipped test shows nothing"


FIXTURE = "@pytest.fixture\ndef a():\n    pytest.skip('no')\n"
SKIPPED = {
    "in its body": "def test_it():\n    pytest.skip('no')",
    "by a mark": "@pytest.mark.skipif(True, reason='no')\ndef test_it(): ...",
    "by a mark with a name": "needs_root = pytest.mark.skipif(True, reason='no')\n@needs_root\ndef test_it(): ...",
    "with its file": "pytestmark = [pytest.mark.skip]\ndef test_it(): ...",
    "with a module": "pytest.importorskip('no')\ndef test_it(): ...",
    "by what it asks for": f"{FIXTURE}def test_it(a): ...",
    "by what that asks for": f"{FIXTURE}@pytest.fixture\ndef b(a): ...\ndef test_it(b): ...",
    "by what it uses": f"{FIXTURE}@pytest.mark.usefixtures('a')\ndef test_it(): ...",
    "by what it calls": "def a():\n    pytest.skip('no')\ndef b():\n    a()\ndef test_it():\n    b()",
    "by what all use": f"{FIXTURE.replace('fixture', 'fixture(autouse=True)')}def test_it(): ...",
}


@pytest.mark.parametrize("text", SKIPPED.values(), ids=SKIPPED)
def test_a_skip_is_found_wherever_it_is(text, tmp_path):
    file = tmp_path / "test_it.py"
    file.write_text(f"import pytest\n{text}\n")
    assert skips(file, functions_of(file)["test_it"])


def test_what_others_of_the_file_ask_for_skips_nothing(tmp_path):
    file = tmp_path / "test_it.py"
    file.write_text(
        "import pytest\nslow = pytest.mark.timeout(9)\n@pytest.fixture\ndef a():\n    pytest.skip('no')\n"
        "def test_other(a): ...\n@slow\ndef test_it(tmp_path): ...\n"
    )
    assert skips(file, functions_of(file)["test_it"]) == []
