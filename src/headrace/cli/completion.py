"""What the shell completes: topics, groups, dev servers, pipelines. Quick, and silent when something fails."""

from __future__ import annotations

import ast
import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SECONDS = 1.0
"""For a cluster to answer: a person waits with a finger on the key."""
_PIPELINES = (".toml", ".py")


def _silent(find: Callable[[typer.Context], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Those that begin with what was typed; none if they cannot be found."""

    @wraps(find)
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return sorted(name for name in find(ctx) if name.startswith(incomplete))
        except Exception:
            return []

    # typer looks at the signature, which is not the one that was wrapped.
    del complete.__wrapped__
    complete.__annotations__ = {"ctx": typer.Context, "incomplete": str}
    return complete


@_silent
def topics(ctx: typer.Context) -> Iterable[str]:
    return [name for name in _admin(ctx).list_topics(timeout=_SECONDS).topics if not name.startswith("__")]


@_silent
def groups(ctx: typer.Context) -> Iterable[str]:
    admin = _admin(ctx)  # held: the answer would never come without it
    found = admin.list_consumer_groups(request_timeout=_SECONDS).result(_SECONDS)
    return [group.group_id for group in found.valid]


@_silent
def servers(ctx: typer.Context) -> Iterable[str]:
    from headrace.dev.registry import SERVERS

    return set(SERVERS) - set(ctx.params.get("servers") or ())


def pipelines(ctx: typer.Context, incomplete: str) -> list[str]:
    """Files that may hold a pipeline and directories on the way to them; behind `app.py:` its names."""
    try:
        file, colon, name = incomplete.partition(":")
        if colon:
            return [f"{file}:{found}" for found in _assigned(Path(file)) if found.startswith(name)]
        typed = Path(incomplete)
        folder = typed if incomplete.endswith(os.sep) else typed.parent
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        named = [f"{path}{os.sep}" if path.is_dir() else str(path) for path in found if _may_hold(path)]
        return [path for path in named if path.startswith(incomplete)]
    except Exception:
        return []


def _may_hold(path: Path) -> bool:
    return path.is_dir() or path.suffix in _PIPELINES


def _assigned(path: Path) -> list[str]:
    """Names that a module gives to what it calls Pipeline(…). It is read, not run."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    made = [node for node in body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    return [
        target.id
        for node in made
        if ast.unparse(node.value.func).rpartition(".")[2] == "Pipeline"  # type: ignore[attr-defined]
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


def _admin(ctx: typer.Context) -> Any:
    from confluent_kafka.admin import AdminClient

    from headrace.cli.pairs import OPTIONS_FILE, kafka_options
    from headrace.kafka.client import Client

    given = ctx.params
    file = given.get("options_file") or os.environ.get(OPTIONS_FILE)
    options = kafka_options(given.get("option"), Path(file) if file else None)
    bootstrap = given.get("bootstrap") or os.environ["KAFKA_BOOTSTRAP"]
    return AdminClient(Client(bootstrap, options).connecting)
