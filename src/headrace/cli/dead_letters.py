"""`headrace dead-letters`: lists, shows, replays and drops records that could not be stored."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import completion
from headrace.cli.options import Execute, Json, Profile  # noqa: TC001 - typer looks at them
from headrace.cli.output.terminal import print_json, say, table
from headrace.core.dead_letters import TEXT_FIELDS
from headrace.text import counted

if TYPE_CHECKING:
    from headrace.core.dead_letters import DeadLetter
    from headrace.tools.dead_letters import DeadLetterAdmin

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:NAME]", help="The pipeline: clicks.toml or app.py:clicks.", autocompletion=completion.pipelines
    ),
]
Ids = Annotated[list[str] | None, typer.Argument(metavar="TOPIC:PARTITION:OFFSET", help="Records, as shown by list.")]
_SHOWN = 50
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]


@app.command("list", epilog="Example: headrace dead-letters list clicks.toml --limit 10")
def list_(
    file: File,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Show at most N. Default: 50; with --json all.", min=1)
    ] = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """List dead letters: the topic, partition and offset of each record, and its error."""
    admin = _admin(file, profile)
    letters = admin.letters()
    if as_json:
        print_json([_to_json(letter) for letter in letters[:limit]])
        return
    from headrace.tools.dead_letters import format_record_id

    limit = limit or _SHOWN
    shown = [
        [
            format_record_id(letter),
            f"{letter.timestamp:%Y-%m-%d %H:%M:%S}" if letter.timestamp else "",
            letter.place,
            _first_line(letter.error),
        ]
        for letter in letters[:limit]
    ]
    if shown:
        table(["record", "time (UTC)", "failed in", "error"], shown)
    more = f", {len(letters) - limit:,} more (--limit)" if len(letters) > limit else ""
    say(f"{counted(len(letters), 'dead letter')} in {admin}{more}")


@app.command(epilog="Example: headrace dead-letters show clicks.toml clicks:0:1200")
def show(file: File, ids: Ids = None, everything: All = False, profile: Profile = None, as_json: Json = False) -> None:
    """Print whole records: key, value, headers and the error."""
    letters = _admin(file, profile).select(ids or [], everything=everything)
    if as_json:
        print_json([_to_json(letter) for letter in letters])
        return
    for letter in letters:
        say(f"{letter.origin}, {letter.timestamp.isoformat() if letter.timestamp else 'no time'}")
        error, *traceback = letter.error.splitlines() or [""]
        say(f"  error:  {error} ({letter.place})")
        for line in traceback:
            say(f"          {line}")
        say(f"  key:    {_readable(letter.key)}")
        for header, value in letter.headers:
            say(f"  header: {header} = {_readable(value)}")
        say(f"  value:  {_readable(letter.value)}")


@app.command(epilog="Example: headrace dead-letters replay clicks.toml --all --execute")
def replay(
    file: File,
    ids: Ids = None,
    everything: All = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Send them to this topic instead of their own. It must exist."),
    ] = None,
    profile: Profile = None,
    execute: Execute = False,
) -> None:
    """Send dead letters back to their topics as new records, then drop the dead letters."""
    admin = _admin(file, profile)
    letters = admin.select(ids or [], everything=everything)
    admin.replay(letters, to, execute=execute)
    _preview(letters, f"sent to {to or 'the topics they came from'}", execute=execute)
    if execute:
        say(f"{counted(len(letters), 'record')} sent back and dropped from the dead letters")


@app.command(epilog="Example: headrace dead-letters drop clicks.toml clicks:0:1200 --execute")
def drop(
    file: File, ids: Ids = None, everything: All = False, profile: Profile = None, execute: Execute = False
) -> None:
    """Delete dead letters. Their records are not processed again."""
    admin = _admin(file, profile)
    letters = admin.select(ids or [], everything=everything)
    _preview(letters, "dropped", execute=execute)
    if execute:
        admin.drop(letters)
        say(f"{counted(len(letters), 'dead letter')} dropped")


def _admin(file: str, profile: str | None) -> DeadLetterAdmin:
    from headrace.runtime.config import load
    from headrace.tools.dead_letters import DeadLetterAdmin

    return DeadLetterAdmin(load(file, profile).pipeline)


def _preview(letters: Any, outcome: str, *, execute: bool) -> None:
    from headrace.tools.dead_letters import format_record_id

    if execute:
        return
    table(["record", "error"], [[format_record_id(letter), _first_line(letter.error)] for letter in letters[:_SHOWN]])
    say(f"{counted(len(letters), 'record')} would be {outcome}; add --execute to do it")


def _first_line(error: str) -> str:
    """The error without its traceback, which `show` prints."""
    return error.partition("\n")[0]


def _readable(value: bytes | None) -> str:
    if value is None:
        return "(none)"
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _to_json(letter: DeadLetter) -> dict[str, Any]:
    def base64_text(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    return {
        **letter.origin._asdict(),
        "timestamp": letter.timestamp.isoformat() if letter.timestamp else None,
        **{name: getattr(letter, name) for name in TEXT_FIELDS},
        "key": base64_text(letter.key),
        "value": base64_text(letter.value),
        "headers": [[header, base64_text(value)] for header, value in letter.headers],
    }
