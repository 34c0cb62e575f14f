"""`headrace transactions`: lists and aborts open transactions of a Kafka cluster."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Execute, Json, Option, OptionsFile, addresses, kafka_options
from headrace.cli.output.progress import progress
from headrace.cli.output.terminal import print_json, say, table
from headrace.errors import ConfigError
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headrace.tools.transactions import Transaction, Transactions

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

HEADRACE_PREFIX = "headrace"
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,…",
        help="Bootstrap servers of the Kafka cluster.",
        envvar="KAFKA_BOOTSTRAP",
        callback=addresses,
    ),
]
Prefix = Annotated[str, typer.Option(metavar="TEXT", help="Only transactional ids with this prefix; '' for all.")]


@app.command("list", epilog="Example: headrace transactions list --bootstrap localhost:9092")
def list_(
    bootstrap: Bootstrap,
    prefix: Prefix = HEADRACE_PREFIX,
    option: Option = None,
    options_file: OptionsFile = None,
    as_json: Json = False,
) -> None:
    """List open transactions. read_committed consumers cannot read past the first record of an open one."""
    with _open_admin(bootstrap, option, options_file) as transactions:
        found = transactions.open(prefix)
    if as_json:
        print_json([_to_json(transaction) for transaction in found])
        return
    _show(found)
    selected = f" whose id begins with {prefix}" if prefix else ""
    say(f"{counted(len(found), 'open transaction')}{selected} at {bootstrap}")


@app.command(epilog="Example: headrace transactions abort --all --execute")
def abort(
    bootstrap: Bootstrap,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Transactional ids, as shown by list.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All transactions that list shows.")] = False,
    prefix: Prefix = HEADRACE_PREFIX,
    option: Option = None,
    options_file: OptionsFile = None,
    execute: Execute = False,
) -> None:
    """Abort open transactions and fence their producers. Their records stay invisible to read_committed consumers.

    A pipeline aborts its own open transactions when it starts. Use this for pipelines that will not start again.
    """
    if bool(ids) == everything:
        raise ConfigError("expected transactional ids or --all", hint="headrace transactions list")
    with _open_admin(bootstrap, option, options_file) as transactions:
        known = {transaction.id: transaction for transaction in transactions.open("" if ids else prefix)}
        if unknown := [name for name in ids or () if name not in known]:
            raise ConfigError(f"no open transaction {unknown[0]} at {bootstrap}", hint="headrace transactions list")
        chosen = [known[name] for name in ids or known]
        _show(chosen)
        if not execute:
            say(f"{counted(len(chosen), 'transaction')} would be aborted; add --execute to do it")
            return
        transactions.abort([transaction.id for transaction in chosen])
    say(f"{counted(len(chosen), 'transaction')} aborted")


def _show(found: Iterable[Transaction]) -> None:
    rows = [[t.id, t.state, _age(t), f"{t.timeout_seconds:g} s", ", ".join(map(str, t.partitions))] for t in found]
    if rows:
        table(["transactional id", "state", "open for", "aborted after", "partitions"], rows)


def _age(transaction: Transaction) -> str:
    return "" if transaction.since is None else f"{(datetime.now(UTC) - transaction.since).total_seconds():,.0f} s"


def _to_json(transaction: Transaction) -> dict[str, object]:
    return {
        "id": transaction.id,
        "state": transaction.state,
        "producer_id": transaction.producer,
        "since": transaction.since.isoformat() if transaction.since else None,
        "timeout_seconds": transaction.timeout_seconds,
        "partitions": [[at.topic, at.partition] for at in transaction.partitions],
    }


@contextmanager
def _open_admin(bootstrap: str, option: list[str] | None, file: Path | None) -> Iterator[Transactions]:
    from headrace.tools.transactions import open_transactions

    options = kafka_options(option, file)
    with progress() as show, open_transactions(bootstrap, options, show) as transactions:
        yield transactions
