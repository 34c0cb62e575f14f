"""`headrace dev`: real servers on this machine."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli import completion
from headrace.cli.output.progress import progress
from headrace.cli.output.terminal import print_json, say
from headrace.errors import ConfigError
from headrace.support.redaction import masked

app = typer.Typer(
    name="dev", help="Start and stop real servers on this machine, for development and tests.", no_args_is_help=True
)

ALL = "all"
Servers = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SERVER",
        help="Server names, such as kafka and redis.",
        show_default=False,
        autocompletion=completion.servers,
    ),
]


@app.command(epilog="Example: headrace dev up kafka postgres")
def up(
    servers: Servers = None,
    brokers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of Kafka brokers.", show_default="1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, metavar="N", help="Port of the first node.", show_default="the standard port if free"
        ),
    ] = None,
) -> None:
    """Start servers, wait until they are ready and print their addresses. Default: kafka.

    Servers: kafka, zookeeper, postgres, redis, cassandra, hbase, mongo, dynamodb, schema-registry, spark; or all.
    """
    from headrace.dev import running_servers

    requested = list(running_servers.SERVERS) if servers == [ALL] else servers or ["kafka"]
    names = [running_servers.check_name(name) for name in dict.fromkeys(requested)]
    if brokers is not None and "kafka" not in names:
        raise ConfigError("--brokers applies only to kafka", hint=f"headrace dev up {' '.join(names)}")
    if port is not None and len(names) > 1:
        raise ConfigError("--port needs exactly one server", hint=f"headrace dev up {names[0]} --port {port}")
    for name in names:
        with progress() as show:
            entry, already = running_servers.up(
                name, port=port, nodes=brokers if name == "kafka" else None, progress=show
            )
        if already:
            say(f"{name} is already up", err=True)
        shown = masked(entry.address)
        say(f"{name} {shown}")
        if licence := running_servers.SERVERS[name].licence:
            say(licence, err=True)
        if shown != entry.address:
            say('with its password: eval "$(headrace dev env)"', err=True)


@app.command(epilog="Example: headrace dev down kafka")
def down(servers: Servers = None) -> None:
    """Stop servers that dev up started. Default: all. Keeps their data."""
    from headrace.dev import running_servers

    names = [running_servers.check_name(name) for name in servers or []] or [
        entry.name for entry in running_servers.entries()
    ]
    if not names:
        say("nothing is up", err=True)
    for name in names:
        stopped = running_servers.down(name)
        say(f"{name} is down" if stopped else f"{name} is not up", err=True)


@app.command(epilog="Example: headrace dev status")
def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show running and crashed servers. Exit code 1 if a server crashed."""
    from headrace.dev import running_servers

    found = running_servers.entries()
    if as_json:
        shown = [
            {key: value for key, value in asdict(entry).items() if key not in ("environment", "settings")}
            | {"address": masked(entry.address), "state": "up" if entry.up else "crashed"}
            | {"nodes": [asdict(node) | {"alive": node not in entry.dead} for node in entry.nodes]}
            for entry in found
        ]
        print_json(shown)
    elif not found:
        say("nothing is up", err=True)
    else:
        for entry in found:
            say(f"{entry.name} {masked(entry.address)} {'up' if entry.up else 'crashed'} since {entry.started}")
            for node in entry.nodes:
                state = "crashed" if node in entry.dead else "up"
                say(f"  {node.name} {state} pid {node.pid} log {node.log}")
                if state == "crashed":
                    for line in node.process.tail().splitlines():
                        say(f"    {line}")
    if not all(entry.up for entry in found):
        raise typer.Exit(1)


@app.command(epilog='Example: eval "$(headrace dev env)"')
def env(servers: Servers = None) -> None:
    """Print the addresses of running servers as export lines for the shell."""
    from headrace.dev import running_servers

    live = [entry for entry in running_servers.entries(servers or ()) if entry.up]
    missing = set(servers or ()) - {entry.name for entry in live}
    if missing or not live:
        names = " ".join(sorted(missing)) or "kafka"
        raise ConfigError(f"not up: {names}", hint=f"headrace dev up {names}")
    for entry in live:
        for name, value in entry.environment.items():
            say(f"export {name}={shlex.quote(value)}")
