"""`headrace`: the commands, and how errors are printed to the terminal.

Exit codes: 0 success, 1 failure, 2 usage error, 3 another run is active, 4 data loss.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from headrace.runtime.metrics_export import Metrics

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


_RUN_EXAMPLES = """Examples:

  headrace run clicks.toml --until caught-up

  headrace run app.py:clicks --metrics-port 9100"""


class _InOrderOfUse(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: [*_IN_ORDER_OF_USE, name].index(name))


app = typer.Typer(
    name="headrace",
    cls=_InOrderOfUse,
    help="Stream records from Kafka through Spark into databases, files and topics, with a checked delivery guarantee.",
    epilog="Exit codes: 0 success, 1 failure, 2 usage error, 3 another run is active, 4 data loss.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(dev.app, name="dev", help="Start and stop real servers on this machine, for development and tests.")
app.add_typer(offsets_show.app, name="offsets", help="Show, reset, export, import and copy the offsets of a pipeline.")
app.add_typer(dead_letters.app, name="dead-letters", help="List, show, replay and drop the dead letters of a pipeline.")
app.add_typer(transactions, name="transactions", help="List and abort open transactions of a Kafka cluster.")
app.add_typer(topics.app, name="topics", help="List, describe, create, alter and delete topics.")
app.add_typer(groups.app, name="groups", help="List, describe and delete consumer groups.")
app.add_typer(jars.app, name="jars", help="List, fetch and locate the jars of Spark's Kafka connector.")
app.command(epilog=producing.EXAMPLES)(producing.produce)
app.command(epilog=consuming.EXAMPLES)(consuming.consume)
app.command(epilog=replaying.EXAMPLES)(replaying.replay)
app.command(epilog="Example: headrace doctor --bootstrap localhost:9092")(doctor)
app.command(epilog="Example: headrace files out/clicks | xargs du -ch")(files)
app.command(epilog="Example: headrace compact out/clicks --target-size 256MB --execute")(compact)

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:NAME]",
        help="The pipeline: clicks.toml, app.py:clicks, or app.py if it defines only one.",
        autocompletion=completion.pipelines,
    ),
]
Spark = Annotated[
    list[str] | None,
    typer.Option(
        "--spark", metavar="KEY=VALUE", help="A Spark setting. ${NAME} is read from the environment. May be repeated."
    ),
]


class LogFormat(StrEnum):
    AUTO = "auto"
    PLAIN = "plain"
    JSON = "json"


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(epilog=_RUN_EXAMPLES)
def run(
    target: Target,
    until: Annotated[
        Until | None,
        typer.Option(
            help="caught-up: process all records that exist at the start, then exit. Default: run until stopped."
        ),
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Exit at the first error instead of retrying.")
    ] = False,
    drain: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Seconds that the batch in flight may take after a stop signal.", min=0),
    ] = 60,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            help="auto: a live line on a terminal, otherwise plain. plain: a line per event. json: an object per event."
        ),
    ] = LogFormat.AUTO,
    preview: Annotated[
        int | None,
        typer.Option(metavar="N", help="Print up to N rows of the newest records and exit. Stores nothing.", min=1),
    ] = None,
    profile: Profile = None,
    spark: Spark = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Start although another run is active, and fence it: it commits nothing more and stops."
        ),
    ] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait until the active run has ended, then start.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics.", min=1, max=65535
        ),
    ] = None,
    metrics_host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Address to serve metrics on. 0.0.0.0: on all addresses, without a login."),
    ] = None,
) -> None:
    """Run a pipeline until Ctrl-C or SIGTERM.

    The first signal lets the batch in flight finish; a second one exits at once."""
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
    metrics = _metrics(metrics_port, metrics_host)
    with console_observer(loaded.pipeline.name, log_format) as observer:
        launch(
            loaded.pipeline,
            until="caught-up" if until else None,
            options=options,
            observer=observer,
            metrics=metrics,
            fail_fast=fail_fast,
            drain=drain,
            progress=say_progress,
            rival=rival_policy(take_over=take_over, standby=standby),
        )


def _metrics(port: int | None, host: str | None) -> Metrics | None:
    if port is None:
        if host is not None:
            raise ConfigError("expected --metrics-port with --metrics-host", hint="--metrics-port 9100")
        return None
    from headrace.runtime.metrics_export import Metrics

    return Metrics(port, host or "127.0.0.1")


@app.command(epilog="Example: headrace check app.py:clicks")
def check(
    target: Target,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    profile: Profile = None,
    spark: Spark = None,
) -> None:
    """Validate a pipeline and print its delivery guarantee. Changes nothing.

    Exit code 2 means that the pipeline cannot run; the errors say why."""
    from headrace.cli.output.progress import progress
    from headrace.cli.output.run_log import report
    from headrace.runtime.config import load
    from headrace.tools.check import check as check_pipeline

    loaded = load(target, profile)
    with progress() as show:
        found = check_pipeline(loaded.pipeline, {**loaded.spark, **spark_options(spark)}, show)
    report(found, as_json=json)
    if found.errors:
        raise typer.Exit(ConfigError.exit_code)


@app.command(epilog="Example: headrace demo --events 50000 --kills 2")
def demo(
    events: Annotated[int, typer.Option(metavar="N", help="Number of click events to produce.", min=1000)] = 200_000,
    kills: Annotated[int, typer.Option(metavar="N", help="Number of times to kill the pipeline.", min=1)] = 3,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seed of the random kill times. Default: a new one, which is printed."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the directory with the table, the logs and the pipeline.")
    ] = False,
) -> None:
    """Show exactly-once delivery from Kafka to DuckDB while the pipeline is killed again and again."""
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
    """Print the frames of the user's functions in the traceback of `error`."""
    from headrace.support.tracebacks import in_user_code

    if frames := in_user_code(error):
        say(*frames.splitlines(), err=True)


def _show(message: str, hint: str | None) -> None:
    typer.echo(f"error: {printable_lines(message)}", err=True)
    if hint:
        typer.echo(f"hint: {printable_lines(hint)}", err=True)


if __name__ == "__main__":
    main()
