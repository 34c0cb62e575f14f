"""A client for schema registries with Confluent's HTTP interface.

Not the client of confluent-kafka: it needs httpx and authlib, which raise warnings when they are imported.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import urllib.error
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.formats import registry_http
from headrace.support.redaction import masked

_TEMPORARY = {408, 429}
_NOT_FOUND_CODES = {40401, 40402, 40403}
"""Error codes of a registry: no such subject, version, schema. An unknown path has another one."""
_MAX_ID = 2**31 - 1
"""Schema ids are ints of Java. The four bytes of a record may hold a larger number."""
_PROBE_SUBJECT = "headrace-is-this-a-registry"
"""A registry responds to a request for its versions with 40401, or with an empty list."""
_SHOWN = 600
"""Characters of a registry's reason that are shown: it may repeat the whole schema."""
_EXAMPLE = "http://localhost:8081, or https://user:password@registry.example.com"


class TooLarge(ConfigError):
    """A response is larger than any schema should be. This concerns one schema, not all of them."""


class _NotFound(ConfigError):
    """404 without an error code of a registry."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema in a registry. `type` is "AVRO", "PROTOBUF" or "JSON"."""

    id: int
    schema: str
    type: str = "AVRO"
    references: tuple[tuple[str, int], ...] = ()
    """The subjects and versions of the schemas that it refers to."""


def check_url(url: object) -> None:
    """ConfigError if this is not the URL of a registry."""
    if not isinstance(url, str):
        raise ConfigError(f"expected the URL of a schema registry, got {url!r}", hint=_EXAMPLE)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or re.search(r"\s", url):
        raise ConfigError(f"expected the URL of a schema registry, got {masked(url)!r}", hint=_EXAMPLE)


@dataclass(frozen=True, slots=True, repr=False)
class SchemaRegistry:
    """The registry at `url`, which may hold a user and a password.

    Each method sends requests. RetriableError: the registry does not respond, or reports a temporary failure.
    ConfigError: it rejects the request, or the URL is not that of a registry.
    """

    url: str

    def __repr__(self) -> str:
        return f"the schema registry at {masked(self.url)}"

    def register_schema(self, subject: str, schema: str) -> int:
        """Register an Avro schema as the next version of `subject`, unless it is a version already. Return its id."""
        body = {"schema": schema}
        response = self._send(f"/subjects/{quote(subject, safe='')}/versions", f"the schema for {subject}", body)
        schema_id = response.get("id") if isinstance(response, dict) else None
        if not isinstance(schema_id, int):
            raise self._not_a_registry_error()
        return schema_id

    def check_compatibility(self, subject: str, schema: str) -> None:
        """ConfigError if `register_schema` would reject an Avro schema. Registers nothing."""
        name, what, body = quote(subject, safe=""), f"the schema for {subject}", {"schema": schema}
        if self._send(f"/subjects/{name}", what, body, absent=None) is not None:
            return  # it is registered already
        try:
            path = f"/compatibility/subjects/{name}/versions/latest?verbose=true"
            response = self._send(path, what, body, absent={})
        except _NotFound:  # not every registry has this path
            return
        if isinstance(response, dict) and response.get("is_compatible") is False:
            reasons = "; ".join(str(message) for message in response.get("messages") or ["no reason given"])
            raise self._rejection_error(409, reasons[:_SHOWN], what)

    def get_versions(self, subject: str) -> list[int]:
        """The versions of a subject, oldest first; empty if the subject does not exist."""
        response = self._send(f"/subjects/{quote(subject, safe='')}/versions", subject, absent=[])
        if not isinstance(response, list) or not all(isinstance(version, int) for version in response):
            raise self._not_a_registry_error()
        return sorted(response)

    def get_version(self, subject: str, version: int) -> RegisteredSchema | None:
        """The schema of one version of a subject; None if it does not exist."""
        response = self._send(f"/subjects/{quote(subject, safe='')}/versions/{version}", subject, absent=None)
        return None if response is None else self._parse(response)

    def get_schema(self, schema_id: int) -> RegisteredSchema | None:
        """The schema with an id; None if it does not exist.

        Any record may hold any id, so none of them may stop a run. An id that is too large is not requested, and any
        404 means that the schema does not exist, provided that a registry responds at this URL.
        """
        if not 0 <= schema_id <= _MAX_ID:
            return None
        try:
            response = self._send(f"/schemas/ids/{schema_id}", f"schema id {schema_id}", absent=None)
        except _NotFound:
            # A proxy whose registry is down may respond 404 to all requests, and good records would become bad ones.
            self.get_versions(_PROBE_SUBJECT)
            return None
        if response is None:
            return None
        return self._parse({"id": schema_id, **response} if isinstance(response, dict) else {})

    def get_subjects(self, schema_id: int) -> list[str]:
        """The subjects that have the schema with this id as a version."""
        try:
            response = self._send(f"/schemas/ids/{schema_id}/versions", f"schema id {schema_id}", absent=[])
        except _NotFound:  # registries before Confluent's 5.5 do not have this path
            return []
        if not isinstance(response, list):
            raise self._not_a_registry_error()
        return [str(entry["subject"]) for entry in response if isinstance(entry, dict) and "subject" in entry]

    def _parse(self, response: Any) -> RegisteredSchema:
        try:
            references = tuple((str(ref["subject"]), int(ref["version"])) for ref in response.get("references") or ())
            kind = str(response.get("schemaType") or "AVRO")
            return RegisteredSchema(int(response["id"]), str(response["schema"]), kind, references)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._not_a_registry_error() from error

    def _send(self, path: str, what: str, body: dict[str, str] | None = None, *, absent: Any = ...) -> Any:
        """The JSON of a response; `absent`, if given, where the registry reports that there is no such thing."""
        try:
            response = registry_http.send(registry_http.build_request(self.url, path, body))
        except (OSError, http.client.HTTPException) as error:
            raise self._connection_error(error) from error
        except ValueError as error:  # it redirects to an invalid URL
            raise self._not_a_registry_error() from error
        if len(response.body) > registry_http.MAX_BYTES:
            raise TooLarge(
                f"{self} responds with more than {registry_http.MAX_BYTES:,} bytes about {what}",
                hint="check the URL, with its path if it has one",
            )
        if response.status >= 300:
            code, reason = _reason(response.body, response.reason)
            if response.status == 404 and code in _NOT_FOUND_CODES and absent is not ...:
                return absent
            raise self._rejection_error(response.status, reason, what)
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError) as error:
            raise self._not_a_registry_error() from error

    def _rejection_error(self, status: int, reason: str, what: str) -> HeadraceError:
        if status in _TEMPORARY or status >= 500:
            return RetriableError(f"{self} reports a temporary failure: {status} {reason}")
        if status == 409:
            return ConfigError(
                f"{self} rejects {what} as incompatible with an earlier version: {reason}",
                hint="give the columns their earlier types, use another subject=, or set its compatibility there",
            )
        if status in (401, 403):
            return ConfigError(f"{self} denies this user access to {what}: {status} {reason}", hint=_EXAMPLE)
        return (_NotFound if status == 404 else ConfigError)(
            f"{self} rejects {what}: {status} {reason}", hint="check the URL, with its path, and schema= if it is given"
        )

    def _connection_error(self, error: OSError | http.client.HTTPException) -> HeadraceError:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(
                f"{self} has an untrusted certificate: {cause.verify_message}", hint="export SSL_CERT_FILE=<its CA>"
            )
        return RetriableError(
            f"{self} does not respond: {str(cause)[:_SHOWN]}",
            hint="headrace dev up schema-registry starts one on this machine",
        )

    def _not_a_registry_error(self) -> ConfigError:
        return ConfigError(
            f"{masked(self.url)} did not return a schema registry response",
            hint="check the URL, with its path if it has one",
        )


def _reason(body: bytes, reason: str) -> tuple[int | None, str]:
    """The registry's own error code and message; no code if something else responds."""
    code: int | None = None
    try:
        content = json.loads(body)
        error_code, message = content.get("error_code"), str(content["message"])
        code = error_code if isinstance(error_code, int) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message = reason
    return code, message if len(message) <= _SHOWN else message[:_SHOWN] + "…"
