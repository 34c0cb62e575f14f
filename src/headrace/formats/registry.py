"""A schema registry, asked the way Confluent's is.

By hand, for one question: the client of confluent-kafka needs httpx and authlib, which warn of themselves at import.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.masking import masked

_TIMEOUT = 10.0
_CONTENT = "application/vnd.schemaregistry.v1+json"
_BUSY = {408, 429}
_MOST = 600
"""Characters of a registry's reason that are shown: it may repeat the whole schema."""
_EXAMPLE = "http://localhost:8081, or https://user:password@registry.example.com"


def checked(url: object) -> None:
    """ConfigError if this is no address of a registry."""
    if not isinstance(url, str):
        raise ConfigError("the address of a schema registry is a text", hint=_EXAMPLE)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or re.search(r"\s", url):
        raise ConfigError(f"{masked(url)!r} is no address of a schema registry", hint=_EXAMPLE)


def register(url: str, subject: str, schema: str) -> int:
    """The id of an Avro schema, which becomes the next version of `subject` unless it is one of it already."""
    request = _request(url, f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - checked() allows http and https
            number = json.load(answer)["id"]
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(error, url, subject) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(error, url) from error
    except (ValueError, KeyError, TypeError) as error:
        raise _foreign(url) from error
    if not isinstance(number, int):
        raise _foreign(url)
    return number


def _request(url: str, path: str, body: dict[str, str]) -> urllib.request.Request:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    address = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + path, "", ""))
    headers = {"Content-Type": _CONTENT, "Accept": f"{_CONTENT}, application/json"}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(unquote(user).encode()).decode()
    return urllib.request.Request(address, json.dumps(body).encode(), headers, method="POST")  # noqa: S310


def _refused(error: urllib.error.HTTPError, url: str, subject: str) -> HeadraceError:
    where = f"the schema registry at {masked(url)}"
    reason = _reason(error)
    if error.code in _BUSY or error.code >= 500:
        return RetriableError(f"{where} cannot answer now: {error.code} {reason}")
    if error.code == 409:
        return ConfigError(
            f"{where} refuses the schema for {subject}, as incompatible with what is there: {reason}",
            hint="give the columns their earlier types, or name another subject=, or set its compatibility there",
        )
    if error.code in (401, 403):
        return ConfigError(f"{where} refuses this user for {subject}: {error.code} {reason}", hint=_EXAMPLE)
    return ConfigError(
        f"{where} does not take the schema for {subject}: {error.code} {reason}",
        hint="check the address, with its path, and record_schema= if it is given",
    )


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        said = str(json.loads(error.read())["message"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        said = str(error.reason)
    return said if len(said) <= _MOST else said[:_MOST] + "…"


def _unreachable(error: OSError | http.client.HTTPException, url: str) -> HeadraceError:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    where = f"the schema registry at {masked(url)}"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ConfigError(f"{where} is not trusted: {cause.verify_message}", hint="export SSL_CERT_FILE=<its CA>")
    return RetriableError(f"{where} does not answer: {cause}", hint="headrace dev up schema-registry starts one here")


def _foreign(url: str) -> ConfigError:
    return ConfigError(
        f"what answers at {masked(url)} is no schema registry", hint="check the address, with its path if it has one"
    )
