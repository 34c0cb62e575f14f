"""Shell completion of topics, groups, dev servers and pipelines. It must be fast, and it never reports an error."""

from __future__ import annotations

import ast
import os
import re
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping

    from headrace.kafka.admin import Admin

_SECONDS = 1.0
"""Seconds that a cluster has to answer: the user waits for the completion."""
_PIPELINES = (".toml", ".py")
_PLAIN = re.compile(r"[\w.:@%+=,/][\w.:@%+=,/-]*")
"""Names that a shell reads as one plain word. bash inserts a completion unquoted and zsh evaluates it, and any client
that may commit offsets can choose the name of a group."""
_WORDS, _CURRENT, _JOINED = "COMP_WORDS", "COMP_CWORD", "_HEADRACE_JOINED"


def join_words(environment: MutableMapping[str, str] = os.environ) -> None:
    """Join the words of `app.py:clicks`, which bash splits into three, to complete only the last one.

    A `:` after an option stays a word of its own: it is a value, as in `--key-separator :`.
    """
    if _WORDS not in environment or not environment.get(_CURRENT, "").isdigit():
        return
    joined: list[str] = []
    indexes: list[int] = []
    open_ended = False  # whether the last one ends with a colon that was a word of its own
    for word in environment[_WORDS].split("\n"):
        colon = word == ":" and len(joined) > 1 and not joined[-1].startswith("-")
        if colon or (open_ended and not word.startswith("-")):
            joined[-1] += word
        else:
            joined.append(word)
        open_ended = colon
        indexes.append(len(joined) - 1)
    current = int(environment[_CURRENT])
    if current < len(indexes):
        if indexes[current] == indexes[current - 1]:
            environment[_JOINED] = "1"
        environment[_WORDS], environment[_CURRENT] = "\n".join(joined), str(indexes[current])


class _AfterColon(str):
    """The part of a completion that bash inserts after a colon. typer would drop it, because it does not begin with the
    whole word."""

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        return True


def _silent(find: Callable[[typer.Context], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """The plain words that begin with the typed text; none if looking them up fails."""

    @wraps(find)
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return sorted(name for name in find(ctx) if name.startswith(incomplete) and _PLAIN.fullmatch(name))
        except Exception:
            return []

    # typer reads the signature, and that of the wrapped function is a different one.
    del complete.__wrapped__
    complete.__annotations__ = {"ctx": typer.Context, "incomplete": str}
    return complete


@_silent
def topics(ctx: typer.Context) -> Iterable[str]:
    """The topics of the cluster. If the command line names a pipeline: its topics, or all topics of its cluster."""
    if file := _pipeline_file(ctx):
        from headrace.kafka.admin import Admin
        from headrace.kafka.client import Client
        from headrace.runtime.config import PROFILE, from_toml

        # A completion never runs a Python file.
        pipeline = from_toml(Path(file), ctx.params.get("profile") or os.environ.get(PROFILE) or None).pipeline
        sources = pipeline.sources.values()
        return pipeline.topics or [
            name for source in sources for name in _topics(Admin(Client(source.bootstrap, source.options), _SECONDS))
        ]
    return _topics(_admin(ctx))


def _pipeline_file(ctx: typer.Context) -> str | None:
    if not any("FILE[:NAME]" in str(parameter.metavar) for parameter in ctx.command.params):
        return None
    # While an option has no value yet, click has not assigned the positional arguments to their parameters.
    return ctx.params.get("file") or next(iter(ctx.args), None)


def _topics(admin: Admin) -> list[str]:
    return [name for name in admin.topics() if not name.startswith("__")]


@_silent
def groups(ctx: typer.Context) -> Iterable[str]:
    return [group.group_id for group in _admin(ctx).list_groups().valid]


@_silent
def servers(ctx: typer.Context) -> Iterable[str]:
    from headrace.dev.running_servers import SERVERS

    return set(SERVERS) - set(ctx.params.get("servers") or ())


def pipelines(ctx: typer.Context, incomplete: str) -> list[str]:
    """Files that may contain a pipeline, and directories on the way to them; after `app.py:` the pipelines in it."""
    try:
        file, colon, name = incomplete.partition(":")
        if colon:
            names = [found for found in _pipeline_names(Path(file)) if found.startswith(name)]
            if _JOINED in os.environ:
                return [_AfterColon(found) for found in names]
            return [f"{file}:{found}" for found in names]
        typed = Path(incomplete)
        folder = typed if incomplete.endswith(os.sep) else typed.parent
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        named = [f"{path}{os.sep}" if path.is_dir() else str(path) for path in found if _may_contain_pipeline(path)]
        return [path for path in named if path.startswith(incomplete) and _PLAIN.fullmatch(path)]
    except Exception:
        return []


def _may_contain_pipeline(path: Path) -> bool:
    return path.is_dir() or path.suffix in _PIPELINES


def _pipeline_names(path: Path) -> list[str]:
    """The names to which a module assigns the result of Pipeline(…). The module is parsed, not run."""
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        if ast.unparse(node.value.func).rpartition(".")[2] == "Pipeline":
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def _admin(ctx: typer.Context) -> Admin:
    from headrace.cli.options import OPTIONS_FILE, kafka_options
    from headrace.kafka.admin import Admin
    from headrace.kafka.client import Client

    params = ctx.params
    file = params.get("options_file") or os.environ.get(OPTIONS_FILE)
    options = kafka_options(params.get("option"), Path(file) if file else None)
    bootstrap = params.get("bootstrap") or os.environ["KAFKA_BOOTSTRAP"]
    return Admin(Client(bootstrap, options), _SECONDS)
