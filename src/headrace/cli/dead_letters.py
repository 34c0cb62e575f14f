"""`headrace dead-letters`: records that could not be stored."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.offsets_arguments import Execute, Json, print_json, table

if TYPE_CHECKING:
    from headrace.letterbox import LetterBox
    from headrace.letters import Letter

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

File = Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="A pipeline: app.py:clicks or clicks.toml.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="TOPIC:PARTITION:OFFSET", help="Which ones, as `list` says.")]
_SHOWN = 50
All = Annotated[bool, typer.Option("--all", help="All of them.")]


@app.command("list")
def list_(
    file: File,
    limit: Annotated[
        int | None, typer.Option(help="No more than so many. Default: 50, with --json all.", min=1)
    ] = None,
    as_json: Json = False,
) -> None:
    """What is there: each record by its place in Kafka, and why it is here."""
    box = _box(file)
    letters = box.letters()
    if as_json:
        print_json([_complete(letter) for letter in letters[:limit]])
        return
    from headrace.letterbox import name

    limit = limit or _SHOWN
    shown = [
        [name(letter), f"{letter.timestamp:%Y-%m-%d %H:%M:%S}" if letter.timestamp else "", letter.place, letter.error]
        for letter in letters[:limit]
    ]
    if shown:
        table(["record", "time (UTC)", "found at", "error"], shown)
    more = f", {len(letters) - limit:,} of them not shown (--limit)" if len(letters) > limit else ""
    typer.echo(f"{_count(letters, 'dead letter')} in {box}{more}")


@app.command()
def show(file: File, ids: Ids = None, everything: All = False, as_json: Json = False) -> None:
    """The whole record: key, value and headers as they came, and the error."""
    from headrace.kafka.records import safe

    letters = _box(file).chosen(ids or [], everything=everything)
    if as_json:
        print_json([_complete(letter) for letter in letters])
        return
    for letter in letters:
        typer.echo(f"{letter.origin}, {letter.timestamp.isoformat() if letter.timestamp else 'no time'}")
        typer.echo(f"  error:  {safe(letter.error)} ({safe(letter.place)})")
        typer.echo(f"  key:    {_readable(letter.key)}")
        for header, value in letter.headers:
            typer.echo(f"  header: {safe(header)} = {_readable(value)}")
        typer.echo(f"  value:  {_readable(letter.value)}")


@app.command()
def replay(
    file: File,
    ids: Ids = None,
    everything: All = False,
    to: Annotated[str | None, typer.Option(help="Another topic than the one they came from.")] = None,
    execute: Execute = False,
) -> None:
    """Send records back to Kafka as they were, then drop their letters. They are read again as new records."""
    box = _box(file)
    letters = box.chosen(ids or [], everything=everything)
    _preview(letters, f"sent to {to or 'the topics they came from'}", execute=execute)
    if execute:
        box.replay(letters, to)
        typer.echo(f"{_count(letters, 'record')} sent back, dropped here")


@app.command()
def drop(file: File, ids: Ids = None, everything: All = False, execute: Execute = False) -> None:
    """Forget dead letters for good."""
    box = _box(file)
    letters = box.chosen(ids or [], everything=everything)
    _preview(letters, "dropped", execute=execute)
    if execute:
        box.drop(letters)
        typer.echo(f"{_count(letters, 'dead letter')} dropped")


def _box(file: str) -> LetterBox:
    from headrace.config import load
    from headrace.letterbox import LetterBox

    return LetterBox(load(file).pipeline)


def _preview(letters: Any, what: str, *, execute: bool) -> None:
    from headrace.letterbox import name

    if execute:
        return
    table(["record", "error"], [[name(letter), letter.error] for letter in letters[:_SHOWN]])
    typer.echo(f"{_count(letters, 'record')} would be {what}; --execute does it")


def _count(letters: Any, what: str) -> str:
    return f"{len(letters):,} {what}{'' if len(letters) == 1 else 's'}"


def _readable(value: bytes | None) -> str:
    if value is None:
        return "(none)"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return text if text.isprintable() else repr(text)


def _complete(letter: Letter) -> dict[str, Any]:
    def encoded(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    return {
        **letter.origin._asdict(),
        "timestamp": letter.timestamp.isoformat() if letter.timestamp else None,
        "error": letter.error,
        "place": letter.place,
        "key": encoded(letter.key),
        "value": encoded(letter.value),
        "headers": [[header, encoded(value)] for header, value in letter.headers],
    }
