"""Connects to PostgreSQL and translates its errors to Headrace's."""

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

# A DSN may override these. They detect a server that vanished silently, and refuse a standby, which may be behind.
_DEFAULTS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "target_session_attrs": "read-write",
    "application_name": "headrace",
}
# Set in each transaction, never in the session, so that it also works behind a pooler. Overrides synchronous_commit=off
# of a server or role. The timeouts release the locks of a client that froze or whose machine died, which could
# otherwise keep them for hours.
BEGIN = """BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '10s';
    SET LOCAL tcp_keepalives_idle = 10; SET LOCAL tcp_keepalives_interval = 5; SET LOCAL tcp_keepalives_count = 3;
    SET LOCAL idle_in_transaction_session_timeout = '60s';
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"""

# For a refused connection the driver has no error code, only the server's message.
_PERMANENT_ERRORS = (
    "password authentication failed",
    "no password supplied",
    "does not exist",
    "pg_hba.conf",
    "permission denied",
    "not permitted",
    "certificate",
)
_GRANT = "grant the user CREATE on the schema, or name another one: …?options=-csearch_path%3Dheadrace"

_CREATION_LOCK = 0x6865_6164_7261_6365  # "headrace": the advisory lock under which tables are created
_GRANT_TABLE = "GRANT SELECT, INSERT, UPDATE, DELETE ON that table to the user"


class Connection:
    """A psycopg connection with `?` as the placeholder of a parameter. `driver` is the wrapped connection."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> offset_tables.Cursor:
        cursor: offset_tables.Cursor = self.driver.execute(query.replace("?", "%s"), parameters)
        return cursor


def connect(dsn: str) -> Any:
    """Open a psycopg connection with Headrace's defaults, which `dsn` overrides."""
    psycopg = require("psycopg", extra="postgres")
    try:
        parameters = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        parameters = {"host": "@"}
    if is_ambiguous(dsn) or "@" in (parameters.get("host") or ""):
        # Omit the driver's message: it quotes parts of the DSN, which may include the password.
        raise ConfigError(
            f"expected a DSN that libpq can read, got {masked(dsn)!r}",
            hint="write the special characters of a password as %40 for @, %2F for /, %3A for :",
        )
    # No prepared statements: many poolers would execute them on a server that has not prepared them.
    # The lines for COPY are UTF-8, independent of the encoding of the database.
    settings = {**_DEFAULTS, **parameters, "client_encoding": "UTF8"}
    return psycopg.connect(**settings, autocommit=True, prepare_threshold=None)


def ensure_tables(driver: Any, *tables: OwnTable) -> None:
    """Create and upgrade Headrace's own tables."""
    own_tables.ensure(Connection(driver), tables, partial(_has_relation, driver), partial(creating, driver))


def has_tables(driver: Any, *tables: OwnTable) -> bool:
    """Whether all `tables` exist; ConfigError if one has a newer format. Only reads."""
    return all(own_tables.stored_formats(Connection(driver), tables, partial(_has_relation, driver)))


@contextmanager
def creating(driver: Any) -> Iterator[Any]:
    """A transaction that one run at a time can enter: concurrent CREATE TABLE fails even with IF NOT EXISTS."""
    with driver.transaction():
        driver.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATION_LOCK])
        yield driver


def _has_relation(driver: Any, name: str) -> bool:
    # Not with to_regclass: after a wait for a lock, its cache may not have a table that was created meanwhile.
    visible = "SELECT 1 FROM pg_catalog.pg_class WHERE relname = %s AND pg_catalog.pg_table_is_visible(oid)"
    return bool(driver.execute(visible, [name]).fetchall())


def translate_error(error: Any, resource: str) -> HeadraceError:
    """Translate an error of psycopg to one of Headrace."""
    reason = " ".join(str(error).split())
    message = f"{resource}: {reason}"
    state = error.sqlstate
    if state == "42501":  # insufficient privilege
        return ConfigError(message, hint=_GRANT if "schema" in reason else _GRANT_TABLE)
    if state is not None and state[:2] in {"28", "3D", "3F", "42"}:  # user, database, schema; a table or column
        return ConfigError(message, hint="were tables dropped or changed? Start again: what is missing is created")
    if state is not None and state[:2] in {"0A", "54", "55", "P0"} and state not in {"55P03", "55006"}:
        # Permanent: not supported, a limit (an index entry too large), a view, a trigger that raised.
        return ConfigError(message, hint="change the transform, or the table")
    if state is None and any(words in reason for words in _PERMANENT_ERRORS):
        return ConfigError(message, hint="check user, password and database: psql 'DSN' -c 'SELECT 1'")
    return RetriableError(message, hint="is the server up, and its address right?")
