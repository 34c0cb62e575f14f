"""Effect marks in PostgreSQL."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.connectors.postgres import client
from headrace.connectors.sql.effect_marks import TABLE, SqlEffectLogClient
from headrace.support.optional_imports import require
from headrace.support.redaction import masked

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class PostgresEffectLog:
    dsn: str = field(repr=False)
    pipeline: str
    keep: float
    is_local: bool = False

    def prepare(self) -> None:
        with closing(self.connect()) as log_client:
            with self._translating_errors():
                connection: Any = log_client.connection
                client.ensure_tables(connection.driver, TABLE)
            log_client.prepare(self.keep)

    def connect(self) -> SqlEffectLogClient:
        with self._translating_errors():
            driver = client.connect(self.dsn)
        return SqlEffectLogClient(client.Connection(driver), self.pipeline, self._translating_errors, driver.close)

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        psycopg = require("psycopg", extra="postgres")
        try:
            yield
        except psycopg.Error as error:
            raise client.translate_error(error, f"marks in {masked(self.dsn)}") from error
