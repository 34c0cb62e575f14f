"""A JDBC connection in Spark's JVM, created in the same way as those of Spark's JDBC writer."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.error_markers import is_jdbc_driver_missing
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.redaction import is_secret, masked, redact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

_READ_COMMITTED = 2
_POSTGRES_NAME = """SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(?)"""
# SQLSTATE classes of permanent errors: data, constraints, user, database, schema, syntax, rights.
_PERMANENT_STATES = ("22", "23", "28", "3D", "3F", "42")


@dataclass(frozen=True, slots=True)
class Database:
    """The address of a database and the options of its driver. `repr` has no secrets."""

    url: str = field(repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    driver: str | None = None

    def __str__(self) -> str:
        return self.clean(self.url)

    def clean(self, text: str) -> str:
        """`text` without secrets; the URL may be part of it."""
        secrets = (value for name, value in self.properties.items() if is_secret(name))
        return redact(text.replace(self.url, masked(self.url)), secrets)

    def options(self, table: str) -> dict[str, str]:
        """The options of Spark's JDBC source."""
        driver = {"driver": self.driver} if self.driver else {}
        return {**self.properties, **driver, "url": self.url, "dbtable": table}

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        with self.translating_errors():
            connection = Connection(self._connect())
            try:
                yield connection
            finally:
                connection.close()

    def _connect(self) -> Any:
        jvm: Any = session()._jvm
        options = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(
            jvm.PythonUtils.toScalaMap(self.options("headrace_batches"))
        )
        return jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.url).createConnectionFactory(options).apply(-1)

    @contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Translate the driver's errors to Headrace's within the block."""
        try:
            yield
        except Exception as error:
            if translated := self._to_headrace_error(getattr(error, "java_exception", None)):
                raise translated from None  # the trace of the JVM would show the URL
            raise  # an error of a Spark job: not about the database, or explained by Spark

    def _to_headrace_error(self, cause: Any) -> HeadraceError | None:
        if cause is None:
            return None
        reason = self.clean(str(cause.getMessage() or cause.toString()))
        message = f"{self}: {reason}"
        if (_state(cause) or "").startswith(_PERMANENT_STATES):
            return ConfigError(message, hint="change the transform, the table or the user's rights")
        if is_jdbc_driver_missing(f"{reason} {cause.toString()}"):
            return ConfigError(
                f"no JDBC driver for {self}: {reason}",
                hint="--spark spark.jars=<the driver's jar>, and driver=<its class> if it does not register itself",
            )
        if _state(cause) is None:
            return None
        return RetriableError(message, hint="is the database up, and its address right?")


class Connection:
    """A java.sql.Connection with the calls that the sink needs."""

    def __init__(self, java: Any) -> None:
        self.java = java
        self._quote = str(java.getMetaData().getIdentifierQuoteString()).strip()

    def close(self) -> None:
        with suppress(Exception):  # a connection that is lost is closed
            self.java.close()

    @property
    def product(self) -> str:
        return str(self.java.getMetaData().getDatabaseProductName())

    def quoted(self, name: str) -> str:
        """The name of a column or table, quoted for the database."""
        return f"{self._quote}{name.replace(self._quote, self._quote * 2)}{self._quote}" if self._quote else name

    def execute(self, statement: str, *values: Any) -> int:
        """Run a statement; return the number of rows that it changed."""
        prepared = self._prepare(statement, values)
        try:
            return int(prepared.executeUpdate())
        finally:
            prepared.close()

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        prepared = self._prepare(statement, values)
        try:
            result = prepared.executeQuery()
            width = result.getMetaData().getColumnCount()
            rows = []
            while result.next():
                rows.append(tuple(result.getObject(number) for number in range(1, width + 1)))
            return rows
        finally:
            prepared.close()

    def can_read(self, table: str) -> bool:
        """Whether the table exists and this user may read it; `table` is quoted."""
        try:
            self.query(f"SELECT 1 FROM {table} WHERE 1 = 0")
        except Exception as error:
            if not (_state(getattr(error, "java_exception", None)) or "").startswith(("42", "S0")):
                raise
            return False
        return True

    def tables(self, prefix: str) -> list[str]:
        """The tables whose names begin with `prefix`."""
        tables = self._tables(self.java.getCatalog(), None, f"{prefix}%")
        return [name for *_, name, kind in tables if "TABLE" in kind]  # some drivers list indexes as well

    def resolve(self, table: str) -> str:
        """The full name of a table for any spelling in `table`: with its schema, and with its catalog if that is not
        the connection's. For a table that does not exist, the name that it would get."""
        *qualifiers, name = table.split(".")
        if self.product == "PostgreSQL":
            # Only the database knows which schema of the search path an unqualified name belongs to.
            quoted = ".".join(self.quoted(part) for part in (*qualifiers, name))
            stored = self.query(_POSTGRES_NAME, quoted)
            return ".".join(stored[0]) if stored else ".".join([*(qualifiers or [self._schema]), name])
        current = str(self.java.getCatalog() or "")
        catalog, schema = current, self._schema
        if qualifiers and self.java.getMetaData().supportsSchemasInTableDefinitions():
            catalog, schema = qualifiers[-2] if len(qualifiers) > 1 else current, qualifiers[-1]
        elif qualifiers:
            catalog = qualifiers[-1]
        escape = str(self.java.getMetaData().getSearchStringEscape() or "")
        name_pattern, schema_pattern = (
            re.sub("[%_]", lambda match: escape + match[0], text) for text in (name, schema)
        )
        candidates = [row[:3] for row in self._tables(catalog or None, schema_pattern or None, name_pattern)]
        same_case = [row for row in candidates if row[2] == name]
        matches = same_case or [row for row in candidates if row[2].lower() == name.lower()]
        catalog, schema, name = matches[0] if matches else (catalog, schema, name)
        return ".".join(part for part in (catalog if catalog != current else "", schema, name) if part)

    @property
    def _schema(self) -> str:
        """The schema of unqualified table names; empty if the database has no schemas."""
        return str(self.java.getSchema() or "")

    def _tables(self, catalog: str | None, schema: str | None, name: str) -> list[tuple[str, str, str, str]]:
        """Catalog, schema, name and type of the tables that match; `schema` and `name` are patterns of LIKE."""
        result = self.java.getMetaData().getTables(catalog, schema, name, None)
        rows = []
        while result.next():
            catalog, schema, name, kind = (str(result.getString(number) or "") for number in range(1, 5))
            rows.append((catalog, schema, name, kind))
        result.close()
        return rows

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block or none."""
        self.java.setTransactionIsolation(_READ_COMMITTED)
        self.java.setAutoCommit(False)
        try:
            yield
            self.java.commit()
        except BaseException:
            with suppress(Exception):  # a lost connection has rolled back
                self.java.rollback()
            raise
        finally:
            with suppress(Exception):
                self.java.setAutoCommit(True)

    def _prepare(self, statement: str, values: Sequence[Any]) -> Any:
        prepared = self.java.prepareStatement(statement)
        for number, value in enumerate(values, 1):
            # py4j would pass a small int as an Integer, which strict drivers do not store as a BIGINT.
            prepared.setLong(number, value) if isinstance(value, int) else prepared.setString(number, value)
        return prepared


def _state(cause: Any) -> str | None:
    """The SQLSTATE of a Java exception; None if it is not an SQLException."""
    try:
        return str(cause.getSQLState() or "")
    except Exception:
        return None


def session() -> SparkSession:
    """The Spark session of this process."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
