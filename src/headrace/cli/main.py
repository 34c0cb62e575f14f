"""`headrace`: the verbs, and how an error reaches the terminal.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 another run is active, 4 data loss.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace._version import __version__
from headrace.cli import completion, dead_letters, dev, groups, jars, offsets_change, offsets_show, topics  # noqa: F401 - offsets_change adds verbs
from headrace.cli import consume as consuming
from headrace.cli import produce as producing
from headrace.cli import replay as replaying
from headrace.cli.doctor import doctor
from headrace.cli.options import Profile, Until, spark_options
from headrace.cli.output.terminal import say, say_progress
from headrace.cli.parquet import compact, files
from headrace.cli.transactions import app as transactions
from headrace.errors import BadRecord, ConfigError, HeadraceError, TransformFailed
from headrace.text import printable_lines

_IN_ORDER_OF_USE = [
    "demo",
    "dev",
    "topics",
    "produce",
    "consume",
    "check",
    "run",
    "offsets",
    "dead-letters",
    "groups",
    "replay",
    "transactions",
    "files",
    "compact",
    "doctor",
    "jars",
]


class _InOrderOfUse(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: [*_IN_ORDER_OF_USE, name].index(name))


app = typer.Typer(
    name="headrace",
    cls=_InOrderOfUse,
    help="Kafka to Spark to stores, with a delivery guarantee that is named, checked and proven.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong use, 3 another run is active, 4 data loss.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(dev.app, name="dev", help="Real servers on this machine, for development and tests.")
app.add_typer(offsets_show.app, name="offsets", help="Offsets and lag: show, move, export, import, copy, undo.")
app.add_typer(dead_letters.app, name="dead-letters", help="Records that could not be stored: list, replay, drop.")
app.add_typer(transactions, name="transactions", help="Transactions left open in a Kafka cluster: list, abort.")
app.add_typer(topics.app, name="topics", help="Topics: list, describe, create, alter, delete.")
app.add_typer(groups.app, name="groups", help="Consumer groups: list, describe, delete.")
app.add_typer(jars.app, name="jars", help="Spark's Kafka connector: list, fetch, path.")
app.command(epilog=producing.EXAMPLES)(producing.produce)
app.command(epilog=consuming.EXAMPLES)(consuming.consume)
app.command(epilog=replaying.EXAMPLES)(replaying.replay)
app.command()(doctor)
app.command()(files)
app.command()(compact)

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:NAME]",
        help="app.py:clicks, or app.py if it holds one pipeline, or clicks.toml",
        autocompletion=completion.pipelines,
    ),
]
Spark = Annotated[
    list[str] | None,
    typer.Option(
        "--spark", metavar="KEY=VALUE", help="A Spark option; ${NAME} is read from the environment. May be repeated."
    ),
]


class LogFormat(StrEnum):
    AUTO = "auto"
    PLAIN = "plain"
    JSON = "json"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    target: Target,
    until: Annotated[
        Until | None, typer.Option(help="caught-up: process what is there now, then end. Default: run until stopped.")
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Give up at the first error instead of retrying.")
    ] = False,
    drain: Annotated[float, typer.Option(help="Seconds the batch in flight gets to finish after a stop.", min=0)] = 60,
    log_format: Annotated[
        LogFormat, typer.Option(help="auto: a live line on a terminal, else plain log lines. json: one object a line.")
    ] = LogFormat.AUTO,
    preview: Annotated[
        int | None,
        typer.Option(metavar="N", help="Print N rows made of the newest records instead; nothing is stored.", min=1),
    ] = None,
    profile: Profile = None,
    spark: Spark = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Begin though another run is alive; that one stops at its next batch.")
    ] = False,
    standby: Annotated[bool, typer.Option("--standby", help="Wait until the run that is alive has ended.")] = False,
) -> None:
    """Run a pipeline until SIGTERM or Ctrl-C (the batch in flight is finished; a second Ctrl-C leaves at once)."""
    from headrace.cli.output.run_log import console_observer
    from headrace.runtime.config import load
    from headrace.runtime.heartbeat import rival_policy
    from headrace.runtime.launch import launch

    loaded = load(target, profile)
    options = {**loaded.spark, **spark_options(spark)}
    if preview is not None:
        from headrace.cli.output.preview import show_preview

        show_preview(loaded.pipeline, preview, options)
        return
    with console_observer(loaded.pipeline.name, log_format) as observer:
        launch(
            loaded.pipeline,
            until="caught-up" if until else None,
            options=options,
            observer=observer,
            fail_fast=fail_fast,
            drain=drain,
            progress=say_progress,
            rival=rival_policy(take_over=take_over, standby=standby),
        )


@app.command()
def check(
    target: Target,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    profile: Profile = None,
    spark: Spark = None,
) -> None:
    """Validate a pipeline and print its guarantee with the reason. Changes nothing anywhere.

    Exit code 2: it cannot run, and why."""
    from headrace.cli.output.progress import progress
    from headrace.cli.output.run_log import report
    from headrace.runtime.config import load
    from headrace.tools.check import check as checked

    loaded = load(target, profile)
    with progress() as show:
        found = checked(loaded.pipeline, {**loaded.spark, **spark_options(spark)}, show)
    report(found, as_json=json)
    if found.errors:
        raise typer.Exit(ConfigError.exit_code)


@app.command()
def demo(
    events: Annotated[int, typer.Option(help="Click events to produce.", min=1000)] = 200_000,
    kills: Annotated[int, typer.Option(help="Times the pipeline is killed.", min=1)] = 3,
    seed: Annotated[int | None, typer.Option(help="Repeat the random moments of an earlier demo.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the demo's folder: the table, the logs, the pipeline.")
    ] = False,
) -> None:
    """Carry clicks from a real Kafka broker into DuckDB, exactly once, while the pipeline is being killed."""
    from headrace.demo.demo import demo as show

    raise typer.Exit(show(events=events, kills=kills, seed=seed, keep=keep))


def main() -> None:
    completion.join_words()
    try:
        app()
    except HeadraceError as error:
        if error.__cause__ is not None and isinstance(error, BadRecord | TransformFailed):
            _show_user_code(error.__cause__)
        _show(error.message, error.hint)
        sys.exit(error.exit_code)
    except Exception as error:
        from headrace.spark.jvm_errors import explain
        from headrace.support.tracebacks import short

        _show_user_code(error)
        _show(f"{type(error).__name__}: {short(error)}", explain(str(error)))
        sys.exit(1)


def _show_user_code(error: BaseException) -> None:
    """The frames of the user's functions that `error` came through."""
    from headrace.support.tracebacks import in_user_code

    if frames := in_user_code(error):
        say(*frames.splitlines(), err=True)


def _show(message: str, hint: str | None) -> None:
    typer.echo(f"error: {printable_lines(message)}", err=True)
    if hint:
        typer.echo(f"hint: {printable_lines(hint)}", err=True)


if __name__ == "__main__":
    main()
