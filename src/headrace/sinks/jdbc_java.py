"""A JDBC connection in Spark's JVM, made as Spark's JDBC writer makes its own: what that finds is found here."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

_READ_COMMITTED = 2
_ORACLE = re.compile(r"(jdbc:oracle:\w+:[^/@]*/)[^@]*@")
_PWD = re.compile(r"(\bpwd=)[^;&\s]*", re.IGNORECASE)
# SQLSTATE classes that no repeat cures: data that does not fit, a constraint, user, database, schema, syntax or rights.
_MISTAKES = ("22", "23", "28", "3D", "3F", "42")


@dataclass(frozen=True, slots=True)
class Database:
    """Where a database is, and how its driver is asked. Shown without its secrets."""

    url: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    driver: str | None = None

    def __str__(self) -> str:
        return self.clean(self.url)

    def clean(self, text: str) -> str:
        """A text in which the URL may stand, as it may be shown."""
        text = text.replace(self.url, _PWD.sub(r"\1***", _ORACLE.sub(r"\1***@", masked(self.url))))
        for name, value in self.properties.items():
            if value and any(word in name.lower() for word in ("password", "secret", "token", "pwd")):
                text = text.replace(value, "***")
        return text

    def options(self, table: str) -> dict[str, str]:
        """What Spark's JDBC source is told."""
        driver = {"driver": self.driver} if self.driver else {}
        return {**self.properties, **driver, "url": self.url, "dbtable": table}

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        with self.translated():
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
    def translated(self) -> Iterator[None]:
        """Raise what the driver or Spark says of it as an error of ours."""
        try:
            yield
        except Exception as error:
            if ours := self._ours(getattr(error, "java_exception", None)):
                raise ours from None  # the trace of the JVM would show the URL
            raise  # of a Spark job: not about the database, or told by Spark in words of its own

    def _ours(self, cause: Any) -> HeadraceError | None:
        if cause is None:
            return None
        reason = self.clean(str(cause.getMessage() or cause.toString()))
        message = f"{self}: {reason}"
        if (_state(cause) or "").startswith(_MISTAKES):
            return ConfigError(message, hint="change the transform, the table or the user's rights")
        if "No suitable driver" in reason or "ClassNotFoundException" in cause.toString():
            return ConfigError(
                f"no JDBC driver for {self}: {reason}",
                hint="--spark spark.jars=<the driver's jar>, and driver=<its class> if it does not register itself",
            )
        if _state(cause) is None:
            return None
        return RetriableError(message, hint="is the database up, and its address right?")


class Connection:
    """A java.sql.Connection with the few calls that are needed."""

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
        """The name of a column or table, as the driver says that names are quoted."""
        return f"{self._quote}{name.replace(self._quote, self._quote * 2)}{self._quote}" if self._quote else name

    def execute(self, statement: str, *values: Any) -> int:
        """Run a statement; how many rows it changed."""
        prepared = self._prepared(statement, values)
        try:
            return int(prepared.executeUpdate())
        finally:
            prepared.close()

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        prepared = self._prepared(statement, values)
        try:
            found = prepared.executeQuery()
            width = found.getMetaData().getColumnCount()
            rows = []
            while found.next():
                rows.append(tuple(found.getObject(number) for number in range(1, width + 1)))
            return rows
        finally:
            prepared.close()

    def can_read(self, table: str) -> bool:
        """Whether there is such a table; `table` is quoted."""
        try:
            self.query(f"SELECT 1 FROM {table} WHERE 1 = 0")
        except Exception as error:
            if not (_state(getattr(error, "java_exception", None)) or "").startswith(("42", "S0")):
                raise
            return False
        return True

    def tables(self, prefix: str) -> list[str]:
        """The tables whose names begin so."""
        found = self.java.getMetaData().getTables(self.java.getCatalog(), None, f"{prefix}%", None)
        names = []
        while found.next():
            if "TABLE" in str(found.getString("TABLE_TYPE")):  # some drivers list indexes, too
                names.append(str(found.getString("TABLE_NAME")))
        found.close()
        return names

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block did, or nothing of it."""
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

    def _prepared(self, statement: str, values: Sequence[Any]) -> Any:
        prepared = self.java.prepareStatement(statement)
        for number, value in enumerate(values, 1):
            # py4j would hand a small int over as an Integer, which strict drivers do not store as a BIGINT.
            prepared.setLong(number, value) if isinstance(value, int) else prepared.setString(number, value)
        return prepared


def _state(cause: Any) -> str | None:
    """The SQLSTATE of a Java exception; None if it is not an SQLException."""
    try:
        return str(cause.getSQLState() or "")
    except Exception:
        return None


def session() -> SparkSession:
    """The session of this process."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
