"""What docs/offsets.md says about offsets that are moved back is what the sinks are held to."""

import importlib
import re
from pathlib import Path

import pytest

from headrace import sinks
from headrace.testing.sinks import IdempotentSinkContract, TransactionalSinkContract
from support.project import ROOT

PAGE = ROOT / "docs" / "offsets.md"
SUITES = {
    name.removeprefix("Test").removesuffix("Sink"): suite
    for module in sorted(Path(__file__).parent.glob("*/test_contract.py"))
    for name, suite in vars(importlib.import_module(f"connectors.{module.parent.name}.test_contract")).items()
    if name.startswith("Test") and isinstance(suite, type) and "Store" not in name
}
ABSTRACT = {
    "IdempotentSink",
    "KeyedSink",
    "DeadLetterTableSink",
    "RowRejectingSink",
    "Sink",
    "TransactionalSink",
    "without_metadata",
}
OTHERWISE = {
    "Console": "are shown, or kept, again",
    "Memory": "are shown, or kept, again",
    "Fanout": "each of its sinks as above",
    "Foreach": "run `fn` again; with `once=` those that are marked as done are skipped",
}
"""Neither idempotent nor transactional, or made of others."""


def rows():
    """The two columns of each row of the table."""
    (table,) = re.findall(r"\| sink \| records that are read again \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE.read_text())
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]


def names(cell):
    return [name for name in re.findall(r"\w+", cell) if name in set(sinks.__all__) - ABSTRACT]


def test_the_table_has_every_sink():
    assert {name for cell, _ in rows() for name in names(cell)} == set(sinks.__all__) - ABSTRACT


@pytest.mark.parametrize(("cell", "said"), [row for row in rows() if "`key`" not in row[0] or "without" in row[0]])
def test_a_sink_does_what_the_table_says(cell, said):
    if cell.startswith("Redis"):
        held = {f"Redis{kind.title()}": SUITES[f"Redis{kind.title()}"] for kind in re.findall(r"\b[a-z]\w+", cell)}
    else:
        held = {name: SUITES.get(name) for name in names(cell)}
    assert held
    for name, suite in held.items():
        if name in OTHERWISE:
            assert said == OTHERWISE[name]
        elif issubclass(suite, TransactionalSinkContract):
            assert said == "are appended again", name
        else:
            assert issubclass(suite, IdempotentSinkContract)
            assert said.startswith("are appended again") is suite.appends, name
