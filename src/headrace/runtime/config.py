"""Loads pipelines from files: TOML, or a Python file and the name of the pipeline in it."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import threading
import tomllib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connectors.fanout import Fanout
from headrace.core.dead_letters import DeadLetters
from headrace.core.planner import Limits
from headrace.errors import ConfigError, HeadraceError
from headrace.formats.avro import Avro
from headrace.formats.csv import Csv
from headrace.formats.json import Json
from headrace.formats.protobuf import Protobuf
from headrace.formats.raw import Bytes, Text
from headrace.kafka import client_options
from headrace.kafka.source import Kafka
from headrace.kafka.source_set import ROWS
from headrace.runtime.file_hints import import_hint
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.plugins import sink_kinds, store_kinds
from headrace.runtime.retry import Retry
from headrace.runtime.static_tables import StaticTable, static_tables
from headrace.support.environment import expand_environment
from headrace.support.pipeline_folder import export, relative_paths_in
from headrace.support.redaction import masked
from headrace.support.suggest import did_you_mean
from headrace.support.tracebacks import shown_path
from headrace.support.validation import wrong_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from headrace.core.format import Format
    from headrace.core.sink import Sink

PROFILE = "HEADRACE_PROFILE"
FORMATS: dict[str, type[Format]] = {
    "avro": Avro,
    "bytes": Bytes,
    "csv": Csv,
    "json": Json,
    "protobuf": Protobuf,
    "text": Text,
}
_SELECTORS = {"topics", "pattern", "partitions"}
_VIEWS_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pipeline, and the Spark options of its file."""

    pipeline: Pipeline
    spark: Mapping[str, str] = field(default_factory=dict)


def load(target: str, profile: str | None = None) -> Loaded:
    """Load `clicks.toml`, `app.py:clicks`, or `app.py` if the file has only one pipeline.

    `profile`, by default `HEADRACE_PROFILE`, names a part of a TOML file that overrides the rest.
    """
    file, _, name = target.partition(":") if not Path(target).exists() else (target, "", "")
    path = Path(file)
    if not path.is_file():
        raise ConfigError(
            f"no file {file}; looked in {Path.cwd()}", hint="headrace run app.py:clicks, or headrace run clicks.toml"
        )
    if path.suffix == ".toml":
        return from_toml(path, profile or os.environ.get(PROFILE) or None)
    if path.suffix == ".py":
        if profile:
            raise ConfigError(
                f"--profile {profile} is for TOML files; {file} is Python",
                hint=f"{PROFILE}={profile} in the environment, which the file can read",
            )
        return Loaded(_from_python(path, name))
    raise ConfigError(f"{file} is neither a .py nor a .toml file", hint="headrace run app.py:clicks")


def from_toml(path: Path, profile: str | None = None) -> Loaded:
    """Read one pipeline. `${NAME}` in a text stands for an environment variable; `[profile.NAME…]` overrides the rest
    if that profile is selected."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint=f"correct {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        with relative_paths_in(path.parent):
            return _pipeline(_with_environment(_with_profile(raw, profile)))
    except ConfigError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error


def _pipeline(raw: dict[str, Any]) -> Loaded:
    known = {
        "name",
        "guarantee",
        "engine",
        "source",
        "sources",
        "transform",
        "tables",
        "expect",
        "mirror_group",
        "sink",
        "sinks",
        "offsets",
        "limits",
        "dead_letters",
        "retry",
        "timeout",
        "spark",
        "profile",
    }
    _refuse_unknown("the file", raw, known)
    sources = "sources" if "sources" in raw else "source"
    for needed in ("name", "guarantee", sources, "sinks" if "sinks" in raw else "sink"):
        if needed not in raw:
            raise ConfigError(f"{needed} is missing", hint=f"known here: {', '.join(sorted(known))}")
    for table in ("source", "sources", "transform", "expect", "sink", "offsets", "limits", "retry", "spark"):
        if not isinstance(raw.get(table, {}), dict):
            raise ConfigError(f"expected a table [{table}], got {masked(repr(raw[table]))}", hint=f"[{table}]")
    arguments: dict[str, Any] = {
        "name": raw["name"],
        "guarantee": raw["guarantee"],
        "source": _sources(raw),
        "sink": _sink(raw),
    }
    if "engine" in raw:
        arguments["engine"] = raw["engine"]
    tables = static_tables(raw.get("tables", {}), arguments["source"] if "sources" in raw else [ROWS])
    if "transform" in raw:
        arguments["transform"] = _transform(raw["transform"], tables)
    elif tables:
        raise ConfigError("[tables] are for a transform in SQL", hint='[transform]\nsql = "SELECT * FROM rows JOIN …"')
    if "dead_letters" in raw:
        arguments["dead_letters"] = _dead_letters(raw["dead_letters"])
    if "offsets" in raw:
        arguments["offsets"] = _one_of("offsets", raw["offsets"], store_kinds())
    if "limits" in raw:
        arguments["limits"] = _call("limits", Limits, [], raw["limits"])
    if "retry" in raw:
        arguments["retry"] = _call("retry", Retry, [], raw["retry"])
    arguments |= {name: raw[name] for name in ("expect", "mirror_group", "timeout") if name in raw}
    return Loaded(Pipeline(**arguments), dict(client_options.flatten(raw.get("spark", {}))))


def _sources(raw: Mapping[str, Any]) -> Kafka | dict[str, Kafka]:
    """One `[source]`, or several `[sources.NAME]`, whose names SQL uses as tables."""
    if "sources" not in raw:
        return _source("source", raw["source"])
    if "source" in raw:
        raise ConfigError("expected [source] or [sources.NAME], got both")
    return {name: _source(f"sources.{name}", source) for name, source in raw["sources"].items()}


def _source(where: str, raw: Any) -> Kafka:
    source: Kafka = _one_of(where, _with_format(where, raw), {"kafka": Kafka})
    return source


def _with_format(where: str, raw: Any) -> Any:
    """Convert `format = "text"` to `Text()` and `format = {json = "id INT"}` to `Json("id INT")`; also `key_format`."""
    if not isinstance(raw, Mapping):
        return raw
    converted = dict(raw)
    for name in {"format", "key_format"} & set(raw):
        converted[name] = _format(f"{where}.{name}", raw[name])
    return converted


def _format(where: str, raw: Any) -> Format:
    table = {raw: True} if isinstance(raw, str) else raw
    fmt: Format = _one_of(where, table, FORMATS)
    return fmt


def _sink(raw: Mapping[str, Any]) -> Sink:
    """One `[sink]`, or several `[[sinks]]`, each of which gets every batch."""
    if "sinks" not in raw:
        return _one_sink("sink", raw["sink"])
    if "sink" in raw or not isinstance(raw["sinks"], list):
        raise ConfigError("expected [sink] or [[sinks]]")
    return Fanout([_one_sink(f"sinks {number}", sink) for number, sink in enumerate(raw["sinks"], start=1)])


def _one_sink(where: str, raw: Any) -> Sink:
    sink: Sink = _one_of(where, _with_format(where, raw), sink_kinds())
    return sink


def _dead_letters(raw: Any) -> Any:
    """`dead_letters = "table"`, or a table with `table` or `topic`, and `limit`."""
    return _call("dead_letters", DeadLetters, [], raw) if isinstance(raw, Mapping) else raw


def _transform(
    raw: dict[str, Any], tables: Mapping[str, StaticTable]
) -> Callable[[DataFrame | dict[str, DataFrame]], DataFrame]:
    _refuse_unknown("[transform]", raw, {"sql"})
    query = raw.get("sql")
    if not isinstance(query, str):
        raise ConfigError("[transform] needs sql", hint='sql = "SELECT * FROM rows"')

    def by_sql(rows: DataFrame | dict[str, DataFrame]) -> DataFrame:
        views = rows if isinstance(rows, dict) else {ROWS: rows}
        with _VIEWS_LOCK:  # pipelines of one process may share a session, and so its view names
            for name, frame in views.items():
                frame.createOrReplaceTempView(name)
            spark = next(iter(views.values())).sparkSession
            for name, table in tables.items():
                table.frame(spark).createOrReplaceTempView(name)
            return spark.sql(query)

    return by_sql


def _one_of(where: str, raw: Mapping[str, Any], kinds: Mapping[str, Callable[..., Any]]) -> Any:
    """Convert `{duckdb = "file", table = "t"}` to `DuckDB("file", table="t")` and `{console = true}` to `Console()`."""
    if not isinstance(raw, Mapping):
        raise ConfigError(
            f"[{where}]: expected a table, got {masked(repr(raw))}", hint=f"one of: {', '.join(sorted(kinds))}"
        )
    names = [key for key in raw if key in kinds]
    if len(names) != 1:
        given = ", ".join(names) or ", ".join(raw) or "nothing"
        near = None if names else next(filter(None, (did_you_mean(key, kinds, 0.75) for key in raw)), None)
        raise ConfigError(f"[{where}] names {given}; expected one of: {', '.join(sorted(kinds))}", hint=near)
    first = raw[names[0]]
    rest = {key: value for key, value in raw.items() if key != names[0]}
    return _call(where, kinds[names[0]], [] if first is True else [first], rest)


def _call(where: str, kind: Callable[..., Any], first: list[Any], rest: Mapping[str, Any]) -> Any:
    signature = inspect.signature(kind)
    try:
        bound = signature.bind(*first, **rest)
    except TypeError as error:
        unknown = next((name for name in rest if name not in signature.parameters), None)
        near = unknown and did_you_mean(unknown, signature.parameters)
        hint = f"{getattr(kind, '__name__', where)} takes: {', '.join(signature.parameters)}"
        raise ConfigError(f"[{where}]: {error}", hint=f"{near} {hint}" if near else hint) from error
    for name, value in bound.arguments.items():
        if signature.parameters[name].annotation in ("bool", bool):
            bound.arguments[name] = _switch(f"[{where}] {name}", value)
    try:
        return kind(*bound.args, **bound.kwargs)
    except TypeError as error:
        raise ConfigError(f"[{where}]: a value has the wrong type: {error}") from error


def _switch(name: str, value: Any) -> bool:
    """A boolean, also as text from the environment. ConfigError for any other text, which Python would take as true."""
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):
        raise wrong_value(name, "true or false", value)
    return bool(value == "true")


def _with_profile(raw: dict[str, Any], wanted: str | None) -> dict[str, Any]:
    profiles = raw.pop("profile", {})
    if not isinstance(profiles, dict):
        raise ConfigError("expected a table [profile.NAME]", hint="[profile.staging.source]")
    if wanted is None:
        return raw
    if wanted not in profiles:
        names = ", ".join(sorted(profiles)) or "none"
        near = did_you_mean(wanted, profiles)
        raise ConfigError(f"no profile {wanted}; profiles: {names}", hint=near or f"[profile.{wanted}.source]")
    if not isinstance(profiles[wanted], dict):
        raise ConfigError(f"expected a table [profile.{wanted}]", hint=f"[profile.{wanted}.source]")
    return _merge(raw, profiles[wanted], {*sink_kinds(), *store_kinds(), *FORMATS})


def _merge(base: dict[str, Any], override: Mapping[str, Any], kinds: set[str]) -> dict[str, Any]:
    """Merge two tables key by key. A sink, store or format of another kind, and any other value, is replaced."""
    merged = dict(base)
    if _SELECTORS & set(override):  # only one of these may be set
        merged = {key: value for key, value in merged.items() if key not in _SELECTORS}
    for key, value in override.items():
        current = merged.get(key)
        own_kinds = (
            set() if key in ("spark", "options") else kinds
        )  # keys defined by others, such as spark.executor.memory
        same_kind = (
            isinstance(value, dict) and isinstance(current, dict) and not (own_kinds & set(value)) - set(current)
        )
        merged[key] = _merge(current, value, own_kinds) if same_kind and isinstance(current, dict) else value
    return merged


def _refuse_unknown(where: str, raw: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(set(raw) - known):
        near, hint = did_you_mean(unknown[0], known), f"known here: {', '.join(sorted(known))}"
        raise ConfigError(f"{where}: unknown name {unknown[0]}", hint=f"{near} {hint}" if near else hint)


def _with_environment(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_environment(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_environment(item) for item in value]
    return expand_environment(value) if isinstance(value, str) else value


def _from_python(path: Path, name: str) -> Pipeline:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # Executors unpickle the user's functions by module name, and the file may import modules of its folder.
    sys.modules[path.stem] = module
    directory = str(path.parent.absolute())
    sys.path.insert(0, directory)
    # Spark starts Python workers later, and they import the file and its modules in the same way. Pickling the file by
    # value would create its globals (a connection, a cache) again for every task.
    export(path.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [directory, os.environ.get("PYTHONPATH")]))
    try:
        with relative_paths_in(path.parent):
            spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except Exception as error:
        frames = [entry for entry in traceback.extract_tb(error.__traceback__) if entry.filename.startswith(directory)]
        lines = [frame.lineno for frame in frames if frame.filename == spec.origin]
        line = f", line {lines[-1]}" if lines else ""
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if frames and frames[-1].filename != spec.origin:  # in a module that the file imports
            message += f" at {shown_path(frames[-1].filename)}:{frames[-1].lineno}"
        raise ConfigError(f"{path}{line}: cannot be imported: {message}", hint=import_hint(error)) from error
    pipelines = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    names = ", ".join(sorted(pipelines)) or "none"
    if name and name not in pipelines:
        raise ConfigError(f"no pipeline {name} in {path}; pipelines: {names}", hint=did_you_mean(name, pipelines))
    if not name and len(pipelines) != 1:
        raise ConfigError(f"{path} has {len(pipelines)} pipelines: {names}", hint=f"headrace run {path}:NAME")
    return pipelines[name] if name else next(iter(pipelines.values()))
