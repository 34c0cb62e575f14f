"""Results as a table on the terminal, as JSON, and as the table of docs/benchmarks.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.frame import Result

BEGIN, END = "<!-- begin: written by python -m benchmarks -->", "<!-- end -->"


def headings(result: Result) -> Sequence[str]:
    return (result.benchmark.unit, "lowest", "highest", "CPU s", "Headrace is", "bound")


def cells(result: Result, name: str, yes: str, no: str) -> list[str]:
    """One contender's row. `yes` and `no` say whether a bound holds."""
    digits = result.benchmark.digits
    values = result.rounds[name]
    numbers = [f"{value:,.{digits}f}" for value in (result.median(name), min(values), max(values))]
    cpu = f"{result.cpu(name):.1f}"
    if name == result.ours:
        return [name, *numbers, cpu, "", ""]
    bound, ratio = result.bound(name), result.ratio(name)
    verdict = f"{bound}: {yes if bound.holds(ratio) else no}" if bound else ""
    # Where nothing is bound, the contenders are not rivals and a ratio would say nothing.
    shown = f"{ratio:.2f}x" if result.benchmark.bounds else ""
    return [name, *numbers, cpu, shown, verdict]


def table(result: Result) -> Table:
    shown = Table(title=_title(result), title_justify="left")
    shown.add_column("contender")
    for heading in headings(result):
        shown.add_column(heading, justify="right")
    for name in result.rounds:
        shown.add_row(*cells(result, name, "[green]holds[/]", "[red]MISSED[/]"))
    return shown


def markdown(report: Mapping[str, Any], results: Sequence[Result]) -> str:
    machine, versions = report["machine"], report["versions"]
    lines = [
        f"{report['date'][:10]}, {machine['cores']} cores ({machine['processor']}), {machine['memory GB']} GB,"
        f" load {machine['load before']} before the run; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f"; {report['topic']['records']:,} records in {report['topic']['partitions']} partitions.",
    ]
    for result in results:
        columns = headings(result)
        lines += ["", f"**{_title(result)}**", "", "| contender | " + " | ".join(columns) + " |"]
        lines += ["|---|" + "---:|" * len(columns)]
        lines += ["| " + " | ".join(cells(result, name, "holds", "missed")) + " |" for name in result.rounds]
    return "\n".join(lines)


def inserted(page: str, text: str) -> str:
    """`page` with `text` between its two marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{text}\n{END}{tail}"


def _title(result: Result) -> str:
    return f"{result.benchmark.title}, median of {len(result.rounds[result.ours])} rounds"
