"""The words of the project: terms of Kafka, Spark and databases, instead of private ones and archaic phrases."""

import re

import pytest

from support.project import ROOT

BANNED = {
    "at the most": "at most",
    "by and by": "gradually",
    "cannot be so": "invalid value for …; expected …",
    "come to lie": "go to",
    "could not be looked at|could not be asked": "could not be checked",
    "desk": "editor",
    "doors?": "listener, port",
    "ear": "listener",
    "farewell": "parent_death_signal",
    "for ever": "forever",
    "greeted": "probed, handshake",
    "hands? on": "passes to",
    "heed|heeds|heeded|heeding": "use, read, apply; has no effect",
    "in hand": "in flight, pending; manual batch loop",
    "in vain": "without success",
    "anew": "recreated, again, replacement",
    "is meant|are meant": "expected …, got …",
    "is no place|is no speed|is no time": "expected …, got …",
    "is not said": "no … given",
    "learnt|unlearnt": "known, fetched",
    "lest": "so that … not",
    "letter box|letterbox": "DeadLetterAdmin",
    "lies behind": "comes after",
    "nobody can|nobody knows": "unknown, cannot",
    "nursery": "fork server",
    "on and on": "continuously",
    "patiently": "retry_until_stopped",
    "stood still": "stalled",
    "strangers?": "another process, another user",
    "tellers?": "printer",
    "thereof|therein|wherein|whence": "of it, in it",
    "weighing": "measuring",
    "without a word": "silently",
    "would obey": "control characters",
}
"""Regular expressions of words, and what to write instead. `_` counts as a space, so names are covered, too."""

NAMES = {
    **BANNED,
    "is said|are said|is told|are told|told so|unless told|when told": "is reported; only with --execute",
    "whoever": "the one that, any",
}
"""The same for the names of tests."""

EXEMPT = {ROOT / "src/headrace/tools/samples/words.py"}  # invented sentences

SOURCES = sorted(path for path in ROOT.glob("src/**/*.py") if path not in EXEMPT)
PAGES = sorted(
    [*ROOT.glob("docs/**/*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
)
TESTS = sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("src/headrace/testing/*.py")])


def banned_in(text, banned=BANNED):
    """Each banned phrase in `text`, with its line and what to write instead."""
    found = []
    for phrase, instead in banned.items():
        spaced = phrase.replace(" ", r"[\s_#]+")
        for match in re.finditer(rf"(?<![A-Za-z0-9])(?:{spaced})(?![A-Za-z0-9])", text, flags=re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"line {line}: {match[0]!r}; write: {instead}")
    return found


@pytest.mark.parametrize("paths", [SOURCES, PAGES], ids=["sources", "pages"])
def test_texts_and_names_use_the_words_of_the_field(paths):
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    assert {name: found for name, text in texts.items() if (found := banned_in(text))} == {}


def test_names_of_tests_use_the_words_of_the_field():
    names = {name for path in TESTS for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    assert {name: found for name in names if (found := banned_in(name, NAMES))} == {}


@pytest.mark.parametrize("text", ["a batch In Hand", "batch_in_hand = 1", "# the batch in\n    # hand", '"in hand"'])
def test_a_banned_phrase_is_found_in_prose_names_and_across_lines(text):
    (found,) = banned_in(text)
    assert found.endswith("write: in flight, pending; manual batch loop")


@pytest.mark.parametrize("text", ["earlier", "desktop", "in handling", "indoors", "within_handler"])
def test_words_that_only_contain_a_banned_one_are_allowed(text):
    assert banned_in(text) == []
