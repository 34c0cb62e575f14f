"""Connections to PostgreSQL, and its errors in our terms."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.connectors.sql import own_tables
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.optional_imports import require
from headrace.support.redaction import is_ambiguous, masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.connectors.sql import offset_tables
    from headrace.connectors.sql.own_tables import OwnTable

# What a DSN may override. A server that vanished silently is noticed; a standby, which may be behind, is refused.
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

_CREATION = 0x6865_6164_7261_6365  # "headrace": the advisory lock under which tables are created
_GRANT_TABLE = "GRANT SELECT, INSERT, UPDATE, DELETE ON that table to the user"


class Connection:
    """A psycopg connection that takes `?` for a parameter. The real one is `driver`."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> offset_tables.Cursor:
        cursor: offset_tables.Cursor = self.driver.execute(query.replace("?", "%s"), parameters)
        return cursor


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


def ensure_tables(driver: Any, *tables: OwnTable) -> None:
    """Create and upgrade tables of Headrace's own."""
    own_tables.ensure(Connection(driver), tables, partial(_has_relation, driver), partial(creating, driver))


def has_tables(driver: Any, *tables: OwnTable) -> bool:
    """Whether all of `tables` are there; ConfigError if one has a newer format. Only reads."""
    exists = partial(_has_relation, driver)
    formats = [own_tables.stored_format(Connection(driver), table, exists) for table in tables]
    return all(formats)


@contextmanager
def creating(driver: Any) -> Iterator[Any]:
    """A transaction for one run at a time: two that create a table at once collide, IF NOT EXISTS or not."""
    with driver.transaction():
        driver.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATION])
        yield driver


def _has_relation(driver: Any, name: str) -> bool:
    # Not by to_regclass: after the wait for a lock it may still answer from a cache that knows no such table.
    visible = "SELECT 1 FROM pg_catalog.pg_class WHERE relname = %s AND pg_catalog.pg_table_is_visible(oid)"
    return bool(driver.execute(visible, [name]).fetchall())


def translate_error(error: Any, who: str) -> HeadraceError:
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
