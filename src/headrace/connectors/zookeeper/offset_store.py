"""Offsets in ZooKeeper, in the layout of old consumers and their tools."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.zookeeper import znodes
from headrace.connectors.zookeeper.znodes import VersionedOffset, ZNodeSnapshot
from headrace.core.offset_store import OffsetStore
from headrace.core.state import AuditEntry, RunLease
from headrace.errors import ConfigError, RetriableError
from headrace.support.optional_imports import require
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.core.offset_store import Heartbeats
    from headrace.core.state import State
    from headrace.types import Progress

_TIMEOUT = 10.0
_MAX_AUDIT_ENTRIES = 1000
_HEARTBEAT = "headrace/heartbeat"


class ZooKeeper(OffsetStore):
    """One node per partition, `/consumers/<group>/offsets/<topic>/<partition>`, with a plain number, which old tools
    can read and write.

    By default the group is the pipeline's name. State that this layout cannot represent is JSON in the node
    `/consumers/<group>/headrace`, whose children are the audit log. A swap is one multi: it sets that node if it still
    has the version that was read, and checks the version of every offset that it moves or depends on, to detect a
    number that an old tool set meanwhile. Such a number is accepted, and a pending batch that it contradicts is
    abandoned.

    ZooKeeper reads one node at a time, while other clients write. So the JSON also has the numbers as the last swap
    left them, and is read after them: a number that differs was set by another tool.

    One multi is one request, which a server limits to 1 MB (`jute.maxbuffer`): about 7,000 partitions. If the servers
    allow more, raise `largest_request`, too. A lost session is replaced, and the next read shows whether its last
    request succeeded. `auth` is a scheme and its credential, such as `("digest", "user:password")`.
    """

    driver = ("kazoo", "zookeeper")

    largest_request = 1_000_000

    def __init__(
        self,
        hosts: str,
        *,
        root: str = "/consumers",
        group: str | None = None,
        auth: tuple[str, str] | None = None,
    ) -> None:
        self._hosts = hosts
        self._root = "/" + root.strip("/")
        self._group = group
        self._auth = auth
        self._base = ""
        self._client: Any = None
        self._snapshot: ZNodeSnapshot | None = None

    @property
    def identity(self) -> str:
        return f"stores.ZooKeeper({self._hosts!r}" + (f", group={self._group!r})" if self._group else ")")

    def open(self, pipeline: str) -> Self:
        kazoo = require("kazoo.client", extra="zookeeper")
        group = self._group or pipeline
        if "/" in group:
            raise ConfigError(f"group: expected a name without slashes, got {group!r}", hint='group="clicks"')
        self._base, self._snapshot = f"{self._root.rstrip('/')}/{group}", None
        with self._translating_errors():
            self._client = kazoo.KazooClient(
                self._hosts,
                timeout=_TIMEOUT,
                auth_data=[self._auth] if self._auth else None,
                # By default the retry delay grows to an hour.
                connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 1.0},
                logger=_quiet_logger(),
            )
            self._client.start_async().wait(_TIMEOUT)
            if not self._client.connected:
                raise self._client.handler.timeout_exception("no connection")
            if self._client.exists_async("/").get(timeout=_TIMEOUT) is None:
                raise ConfigError(
                    f"there is no node {self._client.chroot} in ZooKeeper at {self._hosts}",
                    hint="correct the path after the hosts, or create the node",
                )
        return self

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # a lost connection may raise anything
                client.stop()
                client.close()

    def load(self) -> Progress:
        self._snapshot = None  # also read offsets of old tools, which do not change the node `headrace`
        return super().load()

    def read(self) -> tuple[State, Any]:
        with self._translating_errors():
            self._sync()
            if self._snapshot is None or self._read_state_node()[1:] != (
                self._snapshot.version,
                self._snapshot.written,
            ):
                self._snapshot = self._read_snapshot()
            return self._snapshot.state, self._snapshot

    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        kazoo = require("kazoo.exceptions", extra="zookeeper")
        snapshot: ZNodeSnapshot = version
        known = snapshot.numbers
        before, after, pending = old.progress.offsets, new.progress.offsets, new.progress.pending
        moved = {at: offset for at, offset in after.items() if before.get(at) != offset}
        with self._translating_errors():
            self._ensure_paths({at.topic for at in moved if at not in known}, first=snapshot.written == 0)
            numbers = {
                **known,
                **{at: VersionedOffset(to, known[at].version + 1 if at in known else 0) for at, to in moved.items()},
            }
            multi = self._opened_client.transaction()
            multi.set_data(self._path("headrace"), znodes.encode(new, numbers), version=snapshot.version)
            for at, offset in moved.items():
                if at in known:
                    multi.set_data(self._offset_path(at), b"%d" % offset, version=known[at].version)
                else:
                    multi.create(self._offset_path(at), b"%d" % offset)
            if pending is not None and pending != old.progress.pending:
                for at in (r.at for r in pending.ranges if r.at in known and r.at not in moved):
                    multi.check(self._offset_path(at), known[at].version)
            if change is not None:
                multi.create(self._path("headrace/history/change-"), change.to_json().encode(), sequence=True)
            self._refuse_large(multi)
            self._snapshot = None
            results = multi.commit_async().get(timeout=_TIMEOUT)
            failed = [result for result in results if isinstance(result, Exception)]
            if any(isinstance(e, kazoo.BadVersionError | kazoo.NodeExistsError | kazoo.NoNodeError) for e in failed):
                return False
            if failed:
                raise failed[0]
            self._snapshot = ZNodeSnapshot(new, numbers, results[0].version, results[0].mzxid)
        if change is not None:
            self._trim_history()
        return True

    def lease(self) -> RunLease | None:
        run, newest = super().lease(), self._read_heartbeat()
        return newest if run is not None and run.is_same_run(newest) else run

    def heartbeat(self, run: RunLease) -> bool:
        """Write to a separate node: after a change of the node `headrace` the run would read all offsets again."""
        with self._translating_errors():
            self._sync()
            if not run.is_same_run(znodes.read_lease(self._read_state_node()[0])):
                return False
            self._opened_client.ensure_path_async(self._path(_HEARTBEAT)).get(timeout=_TIMEOUT)
            self._opened_client.set_async(self._path(_HEARTBEAT), run.to_json().encode()).get(timeout=_TIMEOUT)
        return True

    def _read_heartbeat(self) -> RunLease | None:
        with self._translating_errors(), suppress(require("kazoo.exceptions", extra="zookeeper").NoNodeError):
            text, _ = self._opened_client.get_async(self._path(_HEARTBEAT)).get(timeout=_TIMEOUT)
            return RunLease.from_json(text) if text else None
        return None

    def heartbeat_handle(self) -> Heartbeats:
        return ZooKeeper(self._hosts, root=self._root, group=self._group, auth=self._auth)

    def history(self) -> Sequence[AuditEntry]:
        kazoo = require("kazoo.exceptions", extra="zookeeper")
        with self._translating_errors():
            self._sync()
            parent = self._path("headrace/history")
            try:
                names = sorted(self._opened_client.get_children_async(parent).get(timeout=_TIMEOUT))
            except kazoo.NoNodeError:
                return []
            requests = [self._opened_client.get_async(f"{parent}/{name}") for name in names]
            return [AuditEntry.from_json(answer.get(timeout=_TIMEOUT)[0].decode()) for answer in requests]

    @property
    def _opened_client(self) -> Any:
        return self.require_open(self._client)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _offset_path(self, at: TopicPartition) -> str:
        return f"{self._base}/offsets/{at.topic}/{at.partition}"

    def _read_state_node(self) -> tuple[bytes, int, int]:
        """The node `headrace`: its text, its version and the transaction that wrote it."""
        kazoo = require("kazoo.exceptions", extra="zookeeper")
        try:
            text, stat = self._opened_client.get_async(self._path("headrace")).get(timeout=_TIMEOUT)
        except kazoo.NoNodeError:
            return b"", 0, 0
        return text, stat.version, stat.mzxid

    def _sync(self) -> None:
        """The connected server may lag behind the others: wait until it has every earlier swap."""
        self._opened_client.sync_async(self._base).get(timeout=_TIMEOUT)

    def _read_snapshot(self) -> ZNodeSnapshot:
        found = {at: number for at, number in self._read_offsets(self._list_partitions()).items() if number is not None}
        text, version, written = self._read_state_node()
        last_swap = znodes.read_numbers(text)
        again = self._read_offsets(znodes.find_outdated(last_swap, found))
        numbers = znodes.merge_numbers(last_swap, found, again)
        return ZNodeSnapshot(znodes.decode(text, numbers), numbers, version, written)

    def _list_partitions(self) -> list[TopicPartition]:
        kazoo = require("kazoo.exceptions", extra="zookeeper")
        client, parent = self._opened_client, self._path("offsets")
        try:
            topics = client.get_children_async(parent).get(timeout=_TIMEOUT)
            listed = {topic: client.get_children_async(f"{parent}/{topic}") for topic in topics}
            names = {topic: answer.get(timeout=_TIMEOUT) for topic, answer in listed.items()}
        except kazoo.NoNodeError:
            return []
        return [TopicPartition(topic, int(name)) for topic in topics for name in names[topic] if name.isdecimal()]

    def _read_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, VersionedOffset | None]:
        """The offsets, None for a missing node. Sends all requests at once, because each takes a round trip."""
        kazoo = require("kazoo.exceptions", extra="zookeeper")
        requests = {at: self._opened_client.get_async(self._offset_path(at)) for at in partitions}
        found: dict[TopicPartition, VersionedOffset | None] = {}
        for at, answer in requests.items():
            try:
                text, stat = answer.get(timeout=_TIMEOUT)
                found[at] = VersionedOffset(self._parse_offset(at, text), stat.version)
            except kazoo.NoNodeError:
                found[at] = None
        return found

    def _parse_offset(self, at: TopicPartition, text: bytes) -> int:
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(
                f"{self._offset_path(at)} in ZooKeeper at {self._hosts}: expected an offset, got {text[:40]!r}",
                hint="set it to a number, or delete the node",
            ) from error

    def _ensure_paths(self, topics: set[str], *, first: bool) -> None:
        paths = [self._path(f"offsets/{topic}") for topic in sorted(topics)]
        for path in [self._path("headrace/history"), *paths] if first else paths:
            self._opened_client.ensure_path_async(path).get(timeout=_TIMEOUT)

    def _refuse_large(self, multi: Any) -> None:
        # For a larger request ZooKeeper only closes the connection, and a retry does not help.
        size = sum(40 + len(op.path) + len(getattr(op, "data", None) or b"") for op in multi.operations)
        if size > self.largest_request:
            raise ConfigError(
                f"{len(multi.operations):,} changes of {size:,} bytes: expected at most"
                f" {self.largest_request:,} bytes in one request",
                hint="raise jute.maxbuffer on the servers and largest_request of the store, or use another store",
            )

    def _trim_history(self) -> None:
        """Delete old entries of the audit log. If that fails, the next swap does it."""
        with suppress(Exception), self._translating_errors():
            parent = self._path("headrace/history")
            names = sorted(self._opened_client.get_children_async(parent).get(timeout=_TIMEOUT))
            for name in names[:-_MAX_AUDIT_ENTRIES]:
                self._opened_client.delete_async(f"{parent}/{name}").get(timeout=_TIMEOUT)

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        kazoo = require("kazoo.exceptions", extra="zookeeper")
        timeout = require("kazoo.handlers.threading", extra="zookeeper").KazooTimeoutError
        try:
            yield
        except (kazoo.NoAuthError, kazoo.AuthFailedError) as error:
            raise ConfigError(
                f"ZooKeeper at {self._hosts} does not allow this user to access {self._base}",
                hint='stores.ZooKeeper(…, auth=("digest", "user:password")), or open the nodes to it',
            ) from error
        except (kazoo.KazooException, timeout) as error:
            self._snapshot = None
            raise RetriableError(
                f"ZooKeeper at {self._hosts} does not answer: {error or type(error).__name__}",
                hint="headrace dev status, or zkServer.sh status on its host",
            ) from error


def _quiet_logger() -> logging.Logger:
    """kazoo logs each lost connection; the runner reports it once."""
    logger = logging.getLogger("headrace.kazoo")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
