"""Where a dataset is: a local directory, or a path that only Spark can reach. And how its batches are made visible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headrace.errors import ConfigError
from headrace.folders import located
from headrace.lake.columns import BATCH
from headrace.lake.manifests import PLACE
from headrace.lake.objects import Hadoop, Local

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headrace.lake.objects import Objects

Layout = Literal["rename", "manifest"]


class Place:
    """A path as users write it. Nothing is touched until it is asked."""

    def __init__(self, path: str | Path) -> None:
        text = str(path)
        if not text:
            raise ConfigError("an empty path", hint='sinks.Parquet("out/clicks")')
        remote = "://" in text and not text.startswith("file://")
        self.local = None if remote else located(text.removeprefix("file://")).absolute()
        self._text = text.rstrip("/") if remote else str(self.local)

    def __str__(self) -> str:
        return self._text

    @property
    def here(self) -> Path:
        """The directory, of a place that is known to be local."""
        assert self.local is not None
        return self.local

    def objects(self, spark: SparkSession | None = None) -> Objects:
        """The files of the place. One that is not local is reached through `spark`, or the active session."""
        if self.local is not None:
            return Local(self.local)
        return Hadoop(self.session(spark), self._text)

    def session(self, given: SparkSession | None) -> SparkSession:
        """The session that a place which is not local is reached through."""
        from pyspark.sql import SparkSession

        session = given or SparkSession.getActiveSession()
        if session is None:
            raise ConfigError(
                f"{self} is reached through Spark, and no session is active",
                hint="files(spark), or headrace files, which starts one",
            )
        return session

    def layout(self, spark: SparkSession | None = None) -> Layout | None:
        """How what is there was made visible; None if nothing is there."""
        if self.local is None:
            return "manifest"
        if any(file.name.endswith(".json") for file in self.objects(spark).below(PLACE)):
            return "manifest"
        return "rename" if any(self.local.glob(f"{BATCH}=*")) else None
