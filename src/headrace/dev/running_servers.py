"""Records the dev servers that were started on this machine, so that other commands find, show and stop them."""

from __future__ import annotations

import fcntl
import json
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.dev.cassandra import Cassandra
from headrace.dev.dynamodb import DynamoDB
from headrace.dev.hbase import HBase
from headrace.dev.kafka import Kafka
from headrace.dev.mongo import Mongo
from headrace.dev.ports import is_free
from headrace.dev.postgres import Postgres
from headrace.dev.process import Process, ProcessId
from headrace.dev.redis import Redis
from headrace.dev.schema_registry import SchemaRegistry
from headrace.dev.spark import Spark
from headrace.dev.zookeeper import ZooKeeper
from headrace.errors import ConfigError
from headrace.support import paths
from headrace.support.redaction import masked
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.dev.server import Progress, Server

SERVERS: dict[str, type[Server]] = {
    server.name: server
    for server in (Kafka, ZooKeeper, Postgres, Redis, Cassandra, HBase, Mongo, DynamoDB, SchemaRegistry, Spark)
}

_LAST_SUFFIX = ".last.json"
"""The entry of a server at its last stop."""


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One process of a started server."""

    name: str
    pid: int
    created: float
    ports: dict[str, int]
    directory: str
    log: str

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.created)

    @property
    def process(self) -> Process:
        process = Process(Path(self.log))
        process.identity = self.identity
        return process


@dataclass(frozen=True, slots=True)
class Entry:
    """A server that was started by `headrace dev up`."""

    name: str
    address: str
    environment: dict[str, str]
    settings: dict[str, Any]
    started: str
    nodes: tuple[NodeEntry, ...]

    @classmethod
    def of(cls, server: Server) -> Entry:
        nodes = []
        for node in server.nodes:
            assert node.process.identity is not None
            identity = node.process.identity
            directory, log = str(node.directory), str(node.log)
            nodes.append(NodeEntry(node.name, identity.pid, identity.created, node.ports, directory, log))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(server.name, server.address, server.environment, server.settings(), now, tuple(nodes))

    @classmethod
    def from_json(cls, text: str) -> Entry:
        raw: dict[str, Any] = json.loads(text)
        nodes = tuple(NodeEntry(**node) for node in raw.pop("nodes"))
        return cls(nodes=nodes, **raw)

    @property
    def dead(self) -> list[NodeEntry]:
        """Nodes that crashed: they have ended, but were not stopped."""
        return [node for node in self.nodes if node.identity.find() is None]

    @property
    def up(self) -> bool:
        return not self.dead


def root() -> Path:
    return paths.state_directory() / "dev"


def entries(names: Sequence[str] = ()) -> list[Entry]:
    """The servers that were started and not stopped: all of them, or only `names`."""
    wanted = [check_name(name) for name in names] or list(SERVERS)
    return [entry for name in wanted if (entry := _load(name))]


def check_name(name: str) -> str:
    if name not in SERVERS:
        raise ConfigError(f"unknown dev server {name!r}", hint=f"headrace dev up {'|'.join(SERVERS)}")
    return name


def up(name: str, *, port: int | None, nodes: int | None, progress: Progress) -> tuple[Entry, bool]:
    """Start a server that outlives this process, and wait until it answers. True: it was running already."""
    with _lock(check_name(name)):
        entry = _load(name)
        if entry is not None and entry.up:
            _check_same_settings(entry, port, nodes)
            _attach(entry).wait()
            return entry, True
        if entry is not None:
            for node in entry.dead:
                progress(f"{node.name} (pid {node.pid}) crashed, see {node.log}; starting {name} again")
            _stop(entry)
        server = _on_previous_ports(name, port, nodes) or SERVERS[name].for_cli(
            root() / name, port=port, nodes=nodes or 1, progress=progress
        )
        server.progress = progress
        server.detach()
        try:
            server.start(launched=lambda started: _save(Entry.of(started)))
        except BaseException:
            _file(name).unlink(missing_ok=True)
            raise
        return _load(name) or Entry.of(server), False


def down(name: str) -> Entry | None:
    """Stop exactly the processes that `up` started. None: there are none."""
    with _lock(check_name(name)):
        entry = _load(name)
        if entry is not None:
            _stop(entry)
        return entry


def _on_previous_ports(name: str, port: int | None, nodes: int | None) -> Server | None:
    """The server on its previous ports, which clients may use. None if one of them is in use now."""
    last = _load(name, _LAST_SUFFIX)
    if last is None or port is not None or last.settings.get("brokers", 1) != (nodes or 1):
        return None
    server = SERVERS[name].from_record(root() / name, last.settings)
    return server if all(is_free(number) for node in server.nodes for number in node.ports.values()) else None


def _check_same_settings(entry: Entry, port: int | None, nodes: int | None) -> None:
    differs = nodes is not None and nodes != len(entry.nodes)
    if differs or (port is not None and port not in entry.nodes[0].ports.values()):
        raise ConfigError(
            f"{entry.name} is already up, with {counted(len(entry.nodes), 'node')} at {masked(entry.address)}",
            hint=f"headrace dev down {entry.name}",
        )


def _stop(entry: Entry) -> None:
    _attach(entry).stop()
    with suppress(FileNotFoundError):
        _file(entry.name).replace(_file(entry.name, _LAST_SUFFIX))


def _attach(entry: Entry) -> Server:
    """The server of `entry`, attached to its running processes."""
    server = SERVERS[entry.name].from_record(root() / entry.name, entry.settings)
    server.adopt_processes({node.name: node.identity for node in entry.nodes})
    return server


def _file(name: str, suffix: str = ".json") -> Path:
    return root() / f"{name}{suffix}"


def _load(name: str, suffix: str = ".json") -> Entry | None:
    file = _file(name, suffix)
    try:
        return Entry.from_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", hint=f"rm {file}") from error


def _save(entry: Entry) -> None:
    fresh = _file(entry.name).with_suffix(".new")
    paths.write_private(fresh, json.dumps(asdict(entry), indent=2) + "\n")
    fresh.replace(_file(entry.name))


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Allow one `up` or `down` of a server at a time."""
    try:
        paths.private_directory(root())
        file = (root() / f".{name}.lock").open("w")
    except OSError as error:
        raise ConfigError(
            f"cannot write to {root()}: {error}", hint="export HEADRACE_STATE=<a folder you can write to>"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
