"""Connects to DynamoDB, repeats throttled writes and translates errors to Headrace's."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.optional_imports import require
from headrace.support.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DENIED = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
_THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
_TEMPORARY = _THROTTLED | {"InternalServerError", "LimitExceededException", "ServiceUnavailable"}
_THROTTLING = RetryPolicy(first=0.05, longest=5.0, jitter=0.5, within=60.0)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
UP = "is the endpoint up, and the region right?"


def connect(region: str | None, endpoint: str | None) -> Any:
    """Create a client. Credentials come from where AWS tools look for them; DynamoDB Local accepts any."""
    boto3 = require("boto3", extra="dynamodb")
    config = require("botocore.config", extra="dynamodb").Config(
        connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 3}
    )
    settings: dict[str, Any] = {"region_name": region, "endpoint_url": endpoint, "config": config}
    if endpoint is not None and urlsplit(endpoint).hostname in _LOOPBACK:
        settings |= {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": region or "local"}
    try:
        with translate_error(f"DynamoDB ({endpoint or region or 'the default region'})"):
            # A separate session: `boto3.client` uses one session for all threads.
            return boto3.session.Session().client("dynamodb", **settings)
    except ValueError as error:
        raise ConfigError(f"{error}", hint='endpoint="http://localhost:8000", or leave it out') from error


@contextmanager
def translate_error(resource_name: str) -> Iterator[None]:
    """Raise the driver's errors as HeadraceErrors whose messages begin with `resource_name`."""
    errors = require("botocore.exceptions", extra="dynamodb")
    try:
        yield
    except (errors.BotoCoreError, errors.ClientError) as error:
        raise _to_headrace_error(resource_name, error) from error


def code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def reason_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Message", "") or error)


def is_throttled(error: Any) -> bool:
    return code_of(error) in _THROTTLED


def _to_headrace_error(resource_name: str, error: Any) -> HeadraceError:
    errors = require("botocore.exceptions", extra="dynamodb")
    message = f"{resource_name}: {error}"
    if isinstance(error, errors.ClientError):
        code = code_of(error)
        if code in _DENIED:
            return ConfigError(message, hint="check the credentials, and their rights to the table")
        if code == "ResourceNotFoundException":
            return ConfigError(message, hint="check the table's name and the region; create=True makes the table")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _TEMPORARY or status >= 500:
            return RetriableError(message, hint="give the table more write units, or set write_units_per_second=")
        return ConfigError(message, hint="check the options of the sink")
    if isinstance(error, errors.HTTPClientError | errors.ConnectionError):
        return RetriableError(message, hint=UP)
    if isinstance(error, errors.NoCredentialsError | errors.PartialCredentialsError | errors.ProfileNotFound):
        return ConfigError(
            message, hint="export AWS_PROFILE=<name>, or set AWS credentials in another way that AWS tools read"
        )
    if isinstance(error, errors.NoRegionError):
        return ConfigError(message, hint='region="eu-central-1", or export AWS_DEFAULT_REGION=eu-central-1')
    return ConfigError(message, hint="check region= and endpoint=")


def write_until_done(write: Callable[[], bool], resource_name: str) -> None:
    """Call `write` until it returns True: all is written. Throttling errors are repeated, too."""
    errors = require("botocore.exceptions", extra="dynamodb")
    for _ in _THROTTLING.tries():
        try:
            if write():
                return
        except errors.ClientError as error:
            if not is_throttled(error):
                raise
    raise RetriableError(
        f"{resource_name} throttled writes for {_THROTTLING.within:.0f} s",
        hint="give the table more write units, or limit the sink: write_units_per_second=…",
    )


class WriteUnitLimiter:
    """Limits the write units per second of one worker: `wait` returns when the spent units are available again."""

    def __init__(self, units: float) -> None:
        self._units = units
        self._free = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        with self._lock:
            pause = self._free - time.monotonic()
        if pause > 0:
            time.sleep(pause)

    def spend(self, units: float) -> None:
        with self._lock:
            self._free = max(self._free, time.monotonic()) + units / self._units
