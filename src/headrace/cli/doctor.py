"""`headrace doctor`: checks the installation, and prints each problem with the command that fixes it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from headrace.cli.options import Option, OptionsFile, kafka_options
from headrace.cli.output.terminal import print_json
from headrace.text import printable

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    bootstrap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT,…", help="Kafka brokers to test. May be repeated.", show_default="$KAFKA_BOOTSTRAP"
        ),
    ] = None,
    option: Option = None,
    options_file: OptionsFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check Java, Python, pyspark, jars, directories, ports and brokers. Exit code 1 if a check fails."""
    from headrace.tools.doctor import examine

    given = os.environ.get("KAFKA_BOOTSTRAP")
    checks = examine(bootstrap or ([given] if given else []), kafka_options(option, options_file))
    failed = False
    if json:
        from dataclasses import asdict

        results = list(checks)
        failed = any(check.state == "fail" for check in results)
        print_json([asdict(check) for check in results])
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(soft_wrap=True, highlight=False)
        for check in checks:
            failed = failed or check.state == "fail"
            found = Text(printable(f"{check.name}: {check.found}"))
            console.print(Text(f"{check.state:<5}", _COLOURS[check.state]) + found)
            if check.hint and check.state != "ok":
                console.print(Text(printable(f"      hint: {check.hint}")))
    if failed:
        raise typer.Exit(1)
