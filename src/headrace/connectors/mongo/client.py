"""Connects to MongoDB and translates its errors to Headrace's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.optional_imports import require
from headrace.support.redaction import masked

if TYPE_CHECKING:
    from collections.abc import Iterator

DUPLICATE, NAMESPACE_EXISTS = 11000, 48
_DEFAULTS = {"serverSelectionTimeoutMS": 5_000, "connectTimeoutMS": 5_000, "socketTimeoutMS": 30_000}
_OTHER_INDEX = frozenset({85, 86})
_DENIED = frozenset({13, 18, 33, 8000})
_UNKNOWN_WRITE_CONCERN = frozenset({79, 100})
# Internal error, step-down, shutdown, no primary elected yet, conflict, timeout, out of disk space, shards unavailable.
_TEMPORARY = frozenset(
    {1, 6, 7, 8, 24, 43, 46, 50, 63, 64, 89, 91, 112, 133, 134, 150, 189, 202, 234, 262, 358, 9001}
    | {10058, 10107, 11600, 11602, 13388, 13435, 13436, 14031}
)
UP = "is MongoDB up, and its address right?"
_ROLE = "check user, password and authSource in the URL; the user needs the role readWrite on the database"


def connect(url: str) -> Any:
    """Create a client, which connects on first use. Timeouts in the URL override the defaults."""
    pymongo = require("pymongo", extra="mongo")
    address, _, query = url.partition("?")
    options = {option.partition("=")[0].lower() for option in query.split("&")}
    settings = {name: value for name, value in _DEFAULTS.items() if name.lower() not in options}
    try:
        if "@" in query and "@" not in address:
            raise ValueError("a ? in the password")  # pymongo would show it in a warning
        return pymongo.MongoClient(url, appname="headrace", connect=False, **settings)
    except (pymongo.errors.ConfigurationError, ValueError, TypeError):
        # Omit the driver's message: it may quote a part of the URL, which may be the password.
        raise ConfigError(
            f"{masked(url)!r} is not a URL of MongoDB",
            hint="write the special characters of a password as %40 for @, %2F for /, %3A for :",
        ) from None


@contextmanager
def translate_error(resource_name: str) -> Iterator[None]:
    """Raise the driver's errors as HeadraceErrors whose messages begin with `resource_name`."""
    errors = require("pymongo.errors", extra="mongo")
    try:
        yield
    except errors.PyMongoError as error:
        raise _to_headrace_error(resource_name, error) from error


def _to_headrace_error(resource_name: str, error: Any) -> HeadraceError:
    errors = require("pymongo.errors", extra="mongo")
    if isinstance(error, errors.ConnectionFailure):  # the message lists all servers that the driver tried
        return RetriableError(f"{resource_name}: {str(error).partition(', Timeout:')[0]}", hint=UP)
    if isinstance(error, errors.OperationFailure):
        return server_error(resource_name, error.code, str(error).partition(", full error:")[0])
    if isinstance(error, errors.ConfigurationError | errors.InvalidOperation | errors.InvalidName):
        return ConfigError(f"{resource_name}: {error}", hint="check the URL and its options")
    return RetriableError(f"{resource_name}: {error}", hint=UP)


def server_error(resource_name: str, code: int | None, message: str) -> HeadraceError:
    """The error for a server's error code that does not concern a single document."""
    if code in _DENIED:
        return ConfigError(f"{resource_name}: {message}", hint=_ROLE)
    if code in _TEMPORARY:
        return RetriableError(f"{resource_name}: {message}", hint=UP)
    if code in _UNKNOWN_WRITE_CONCERN:
        return ConfigError(f"{resource_name}: {message}", hint="write_concern= asks for more than the replica set has")
    if code in _OTHER_INDEX:
        return ConfigError(
            f"{resource_name}: {message}",
            hint="an index with other options exists: drop it, or give it the same options",
        )
    return ConfigError(f"{resource_name}: {message}", hint="does this version of the server support the operation?")


def write_concern_error(resource_name: str, code: int | None, message: str) -> HeadraceError:
    """The error if documents were written but the write concern was not met."""
    if code in _UNKNOWN_WRITE_CONCERN:
        return server_error(resource_name, code, message)
    return RetriableError(f"{resource_name}: {message}", hint=UP)


def concerns_one_document(code: int) -> bool:
    """Whether an error code of a bulk write concerns only one document."""
    return code not in _DENIED | _TEMPORARY | _UNKNOWN_WRITE_CONCERN
