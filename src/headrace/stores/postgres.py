"""Offsets in PostgreSQL, in three plain tables."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.extras import require
from headrace.masking import is_ambiguous, masked
from headrace.stores import sql
from headrace.stores.base import OffsetStore
from headrace.stores.marks import MarkKeeper

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from headrace.stores.base import Heartbeats
    from headrace.stores.marks import Marks
    from headrace.stores.state import Change, State

# What a DSN may override. A server that vanished without a word is noticed; a standby, which may be behind, is refused.
_DEFAULTS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "target_session_attrs": "read-write",
    "application_name": "headrace",
}
# In each transaction and never in the session, so that it also works behind a pooler. A server or role that does
# without durability for speed is not followed in that; a client that froze, or whose machine died, does not keep its
# locks for hours.
BEGIN = """BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '10s';
    SET LOCAL tcp_keepalives_idle = 10; SET LOCAL tcp_keepalives_interval = 5; SET LOCAL tcp_keepalives_count = 3;
    SET LOCAL idle_in_transaction_session_timeout = '60s';
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"""
_LOOK = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_TABLES_THERE = """SELECT 1 WHERE to_regclass('headrace_offsets') IS NOT NULL
    AND to_regclass('headrace_pipelines') IS NOT NULL AND to_regclass('headrace_history') IS NOT NULL"""
_CREATION = 0x6865_6164_7261_6365  # "headrace": the advisory lock under which tables are created
_NEW_PIPELINE = """INSERT INTO headrace_pipelines (pipeline, last_batch, topic_ids) VALUES (?, 0, '{}')
    ON CONFLICT DO NOTHING"""
_LOCK = "SELECT 1 FROM headrace_pipelines WHERE pipeline = ? FOR UPDATE"

# Of a refused connection the driver has no code, only the server's words.
_REFUSALS = (
    "password authentication failed",
    "no password supplied",
    "does not exist",
    "pg_hba.conf",
    "permission denied",
    "not permitted",
    "certificate",
)
_GRANT = "grant the user CREATE on the schema, or name another one: …?options=-csearch_path%3Dheadrace"

_GRANT_TABLE = "GRANT SELECT, INSERT, UPDATE, DELETE ON that table to the user"


class Connection:
    """A psycopg connection that takes `?` for a parameter. The real one is `driver`."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> sql.Cursor:
        cursor: sql.Cursor = self.driver.execute(query.replace("?", "%s"), parameters)
        return cursor


class Postgres(OffsetStore, MarkKeeper):
    """Any number of pipelines in one database. The tables are created when they are not there.

    `dsn` is a URL or a connection string of libpq; what it leaves out comes from PGPASSWORD, ~/.pgpass and the like.
    """

    driver = ("psycopg", "postgres")

    def __init__(self, dsn: str) -> None:
        if not isinstance(dsn, str) or not dsn.strip():
            raise ConfigError("a DSN is missing", hint='stores.Postgres("postgresql://user@localhost/app")')
        self._dsn = dsn
        self._pipeline = ""
        self._connection: Any = None
        self._unsure = False

    @property
    def identity(self) -> str:
        return f"stores.Postgres({masked(self._dsn)!r})"

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        with self._translated():
            self._connection = connect(self._dsn)
            if not self._connection.execute(_TABLES_THERE).fetchall():
                self._define(*sql.TABLES)
        return self

    def open_for_reading(self, pipeline: str) -> str | None:
        self._pipeline = pipeline
        with self._translated():
            self._connection = connect(self._dsn)
            there = self._connection.execute(_TABLES_THERE).fetchall()
        if there:
            return None
        self.close()
        return f"{self!r} has no table headrace_offsets"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read(self) -> tuple[State, Any]:
        if self._unsure:
            # A commit whose answer was lost may still be under way: its lock says when it is not.
            with self.transaction() as connection:
                return sql.read(connection, self._pipeline), None
        with self.reading() as connection:
            return sql.read(connection, self._pipeline), None

    def swap(self, version: Any, old: State, new: State, change: Change | None = None) -> bool:
        with self.transaction() as connection:
            return sql.swap(connection, self._pipeline, old, new, change)

    def heartbeat_handle(self) -> Heartbeats:
        return Postgres(self._dsn)

    def history(self) -> Sequence[Change]:
        with self.reading() as connection:
            return sql.history(connection, self._pipeline)

    def advice(self, pipeline: str) -> list[str]:
        with self._translated(), connect(self._dsn) as connection:
            ((fsync,),) = connection.execute("SELECT current_setting('fsync')").fetchall()
        lost = f"{self!r} runs with fsync = off: a crash of its machine may lose or corrupt the offsets"
        return [lost] if fsync == "off" else []

    def marks(self, pipeline: str, keep: float) -> Marks:
        from headrace.stores.marks_postgres import PostgresMarks

        return PostgresMarks(self._dsn, pipeline, keep)

    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction that changes nothing."""
        return self._begun(_LOOK)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that no other writer of this pipeline can enter: the pipeline's row is locked."""
        try:
            with self._begun(BEGIN) as connection:
                connection.execute(_NEW_PIPELINE, [self._pipeline])
                connection.execute(_LOCK, [self._pipeline])
                yield connection
        except RetriableError:
            self._unsure = self._unsure or self._connection.closed
            raise
        self._unsure = False

    @contextmanager
    def _begun(self, begin: str) -> Iterator[Connection]:
        if self._connection is None:
            raise ConfigError(f"{self!r} is used before open()")
        with self._translated():
            self._begin(begin)
            try:
                yield Connection(self._connection)
            except BaseException:
                with suppress(require("psycopg", extra="postgres").Error):  # a lost connection has rolled back
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _begin(self, begin: str) -> None:
        psycopg = require("psycopg", extra="postgres")
        try:
            self._connection.execute(begin)
        except psycopg.OperationalError:
            if not self._connection.closed:
                raise
            # The server was restarted since the last call; nothing of this one has happened yet.
            self._connection = connect(self._dsn)
            self._connection.execute(begin)

    def _define(self, *statements: str) -> None:
        with self._connection.transaction():
            # Two runs that create at once collide in the catalogue, IF NOT EXISTS or not.
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATION])
            for statement in statements:
                self._connection.execute(statement)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Connected without `open`, which makes what is not there."""
        with self._translated():
            self._connection = connect(self._dsn)
            try:
                yield
            finally:
                self.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        psycopg = require("psycopg", extra="postgres")
        try:
            yield
        except psycopg.Error as error:
            raise translated(error, repr(self)) from error


def connect(dsn: str) -> Any:
    """A connection of psycopg with our defaults; what `dsn` says wins over them."""
    psycopg = require("psycopg", extra="postgres")
    try:
        given = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        given = {"host": "@"}
    if is_ambiguous(dsn) or "@" in (given.get("host") or ""):
        # Not a word of the driver's: it quotes pieces of the DSN, and one of them may be the password.
        raise ConfigError(
            f"{masked(dsn)!r} is not a DSN that libpq can read",
            hint="write the special characters of a password as %40 for @, %2F for /, %3A for :",
        )
    # Statements are not prepared: many poolers would send them to a server that does not know them.
    # The lines for COPY are UTF-8, whatever the database's own encoding is.
    return psycopg.connect(**{**_DEFAULTS, **given, "client_encoding": "UTF8"}, autocommit=True, prepare_threshold=None)


def translated(error: Any, who: str) -> HeadraceError:
    """An error of psycopg in our terms."""
    reason = " ".join(str(error).split())
    message = f"{who}: {reason}"
    state = error.sqlstate
    if state == "42501":  # no right to it
        return ConfigError(message, hint=_GRANT if "schema" in reason else _GRANT_TABLE)
    if state is not None and state[:2] in {"28", "3D", "3F", "42"}:  # user, database, schema; a table or column
        return ConfigError(message, hint="were tables dropped or changed? Start again: what is missing is created")
    if state is not None and state[:2] in {"0A", "54", "55", "P0"} and state not in {"55P03", "55006"}:
        # Not supported, a limit (an index entry too large), a view, a trigger that raised: the same again next time.
        return ConfigError(message, hint="change the transform, or the table")
    if state is None and any(words in reason for words in _REFUSALS):
        return ConfigError(message, hint="check user, password and database: psql 'DSN' -c 'SELECT 1'")
    return RetriableError(message, hint="is the server up, and its address right?")
