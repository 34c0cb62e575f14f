"""`headrace jars`: the jars fetched from Maven, for clusters and machines without a network."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Annotated

import typer

from headrace.cli import completion
from headrace.cli.output.progress import progress
from headrace.cli.output.terminal import say
from headrace.text import counted

app = typer.Typer(name="jars", help="List, fetch and locate the jars of Spark's Kafka connector.", no_args_is_help=True)


@app.command("list", epilog="Example: headrace jars list")
def list_() -> None:
    """List the cached jars and verify their checksums. Exit code 1 if one is damaged."""
    from headrace.jars import bundles as jars_bundles
    from headrace.jars import cache

    found = cache.manifests()
    if not found:
        say(f"no jars in {jars_bundles.root()} yet; fetch them with: headrace jars fetch", err=True)
    damaged = False
    for manifest in found:
        problems = cache.verify(manifest)
        damaged = damaged or bool(problems)
        size = sum(jar.stat().st_size for jar in manifest.jars if jar.exists())
        summary = f"{counted(len(manifest.jars), 'jar')} {size / 1e6:.0f} MB {manifest.directory}"
        note = f" ({manifest.alternative})" if manifest.alternative else ""
        say(f"{manifest.name} {manifest.version} {summary}{note}")
        for problem in problems:
            say(f"  damaged: {problem}")
    if damaged:
        say("hint: headrace jars fetch", err=True)
        raise typer.Exit(1)


@app.command(epilog="Example: headrace jars fetch --dev")
def fetch(
    servers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERVER",
            help="Also fetch the jars of these dev servers.",
            show_default=False,
            autocompletion=completion.servers,
        ),
    ] = None,
    dev: Annotated[bool, typer.Option("--dev", help="Also fetch the jars of all dev servers.")] = False,
) -> None:
    """Fetch missing and damaged jars. Without arguments those of the Kafka and Avro connectors."""
    from headrace.dev import running_servers
    from headrace.jars import bundles as jars_bundles
    from headrace.jars import cache

    named = {running_servers.check_name(name) for name in servers or ()}
    bundles = [
        *jars_bundles.bundles(),
        *(
            bundle
            for name, server in running_servers.SERVERS.items()
            for bundle in server.bundles
            if dev or name in named or bundle.directory.exists()
        ),
    ]
    # Concurrently: a single fetch leaves the network idle while it waits for responses of the repository.
    with progress() as show, ThreadPoolExecutor(max_workers=len(bundles)) as pool:
        fetches = [pool.submit(cache.fetch, bundle, show) for bundle in bundles]
        wait(fetches)
    for bundle, done in zip(bundles, fetches, strict=True):
        done.result()
        manifest = cache.Manifest.read(bundle.directory)
        note = f" ({manifest.alternative})" if manifest and manifest.alternative else ""
        say(f"{bundle} {bundle.directory}{note}")
        if (warning := cache.unpinned_warning(bundle)) is not None:
            say(f"warning: {warning}", err=True)


@app.command(epilog='Example: spark-submit --jars "$(headrace jars path)" app.py')
def path() -> None:
    """Print the paths of the connector jars, comma-separated, for spark-submit --jars."""
    from headrace.jars import cache

    with progress() as show:
        found = cache.connector(show)
    say(",".join(str(jar) for jar in found))
