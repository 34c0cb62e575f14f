"""A schema registry, asked the way Confluent's is.

By hand, for a few questions: the client of confluent-kafka needs httpx and authlib, which warn of themselves at import.
"""

from __future__ import annotations

import base64
import http.client
import json
import queue
import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.redaction import masked

_TIMEOUT = 10.0
"""Seconds without a byte."""
_DEADLINE = 30.0
"""Seconds for a whole answer: one that drips would never time out."""
_MAX_BYTES = 10_000_000
"""Of one answer. Registries refuse schemas far smaller than this."""
_CONTENT = "application/vnd.schemaregistry.v1+json"
_BUSY = {408, 429}
_ABSENT = {40401, 40402, 40403}
"""A registry's own codes: no such subject, version, schema. What is not even its path has another."""
_LARGEST_ID = 2**31 - 1
"""Registries number schemas by Java's int. The four bytes of a record may say more."""
_NOBODYS = "headrace-is-this-a-registry"
"""A subject to ask for when it must be known that a registry answers: 40401, or an empty list."""
_MOST = 600
"""Characters of a registry's reason that are shown: it may repeat the whole schema."""
_MOST_OF_A_URL = 500
_EXAMPLE = "http://localhost:8081, or https://user:password@registry.example.com"


class TooLarge(ConfigError):
    """An answer is larger than any schema should be. It tells of the one thing that was asked for, not of all."""


class _NotFound(ConfigError):
    """404, not in a registry's own words."""


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


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as a registry has it. `type` is "AVRO", "PROTOBUF" or "JSON"."""

    id: int
    schema: str
    type: str = "AVRO"
    references: tuple[tuple[str, int], ...] = ()
    """The subjects and versions of the schemas that it names."""


def register(url: str, subject: str, schema: str) -> int:
    """The id of an Avro schema, which becomes the next version of `subject` unless it is one of it already."""
    answer = _ask(url, f"/subjects/{quote(subject, safe='')}/versions", f"the schema for {subject}", {"schema": schema})
    number = answer.get("id") if isinstance(answer, dict) else None
    if not isinstance(number, int):
        raise _foreign(url)
    return number


def refuse_incompatible(url: str, subject: str, schema: str) -> None:
    """ConfigError if `register` would refuse an Avro schema; it is not registered."""
    name, what, body = quote(subject, safe=""), f"the schema for {subject}", {"schema": schema}
    if _ask(url, f"/subjects/{name}", what, body, absent=None) is not None:
        return  # it is one of its versions already
    try:
        path = f"/compatibility/subjects/{name}/versions/latest?verbose=true"
        answer = _ask(url, path, what, body, absent={})
    except _NotFound:  # not every registry can tell
        return
    if isinstance(answer, dict) and answer.get("is_compatible") is False:
        said = "; ".join(str(one) for one in answer.get("messages") or ["it does not say why"])
        raise _refused(409, said[:_MOST], url, what)


def versions(url: str, subject: str) -> list[int]:
    """The versions of a subject, oldest first; none if there is no such subject."""
    answer = _ask(url, f"/subjects/{quote(subject, safe='')}/versions", subject, absent=[])
    if not isinstance(answer, list) or not all(isinstance(number, int) for number in answer):
        raise _foreign(url)
    return sorted(answer)


def version(url: str, subject: str, number: int) -> RegisteredSchema | None:
    """One version of a subject, if it is there."""
    answer = _ask(url, f"/subjects/{quote(subject, safe='')}/versions/{number}", subject, absent=None)
    return None if answer is None else _registered(url, answer)


def by_id(url: str, number: int) -> RegisteredSchema | None:
    """The schema with an id, if it is there. Records name ids, so whatever they name is no reason to stop: an id that
    cannot be one is not asked for, and a 404 in any words says that it is not there, if a registry answers at all."""
    if not 0 <= number <= _LARGEST_ID:
        return None
    try:
        answer = _ask(url, f"/schemas/ids/{number}", f"schema id {number}", absent=None)
    except _NotFound:
        # A proxy whose registry is away may say 404 to everything, and good records would become bad ones.
        versions(url, _NOBODYS)
        return None
    return None if answer is None else _registered(url, {"id": number, **answer} if isinstance(answer, dict) else {})


def subjects_of(url: str, number: int) -> list[str]:
    """The subjects that the schema with an id is a version of."""
    try:
        answer = _ask(url, f"/schemas/ids/{number}/versions", f"schema id {number}", absent=[])
    except _NotFound:  # registries before Confluent's 5.5 do not have this path
        return []
    if not isinstance(answer, list):
        raise _foreign(url)
    return [str(one["subject"]) for one in answer if isinstance(one, dict) and "subject" in one]


def _registered(url: str, answer: Any) -> RegisteredSchema:
    try:
        references = tuple((str(one["subject"]), int(one["version"])) for one in answer.get("references") or ())
        kind = str(answer.get("schemaType") or "AVRO")
        return RegisteredSchema(int(answer["id"]), str(answer["schema"]), kind, references)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise _foreign(url) from error


_MUST = object()


def _ask(url: str, path: str, what: str, body: dict[str, str] | None = None, *, absent: Any = _MUST) -> Any:
    """The answer to a question, or `absent`, if that is given, where a registry says that it has no such thing."""
    try:
        status, reason, answer = _whole(_request(url, path, body))
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(error, url) from error
    except ValueError as error:  # it redirects to what is no address
        raise _foreign(url) from error
    if len(answer) > _MAX_BYTES:
        raise TooLarge(
            f"the schema registry at {masked(url)} answers with more than {_MAX_BYTES:,} bytes about {what}",
            hint="check the address, with its path if it has one",
        )
    if status >= 300:
        code, said = _reason(answer, reason)
        if status == 404 and code in _ABSENT and absent is not _MUST:
            return absent
        raise _refused(status, said, url, what)
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise _foreign(url) from error


class _SamePlace(urllib.request.HTTPRedirectHandler):
    """Follows a redirect, but takes no password along to another server, nor goes from TLS to plain text. What is said
    beside it is not read: urllib would read all of it, however much that is."""

    def http_error_302(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any) -> Any:
        fp.close()
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        same = (before.scheme, before.hostname, before.port) == (after.scheme, after.hostname, after.port)
        plain = after.scheme != "https" and before.scheme == "https"
        if plain or after.scheme not in ("http", "https") or (req.has_header("Authorization") and not same):
            raise ConfigError(
                f"the schema registry at {masked(req.full_url)} redirects to {masked(newurl[:_MOST_OF_A_URL])},"
                " which is not followed:"
                f" {'it is not encrypted' if plain else 'the password is for the first address alone'}",
                hint="give the address of the registry itself",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Lines:
    """The connections of one question, so that another thread can end them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._over = False

    def add(self, line: socket.socket) -> None:
        """By a second handle: TLS takes over the first one before it has greeted."""
        with self._lock:
            if self._over:
                line.shutdown(socket.SHUT_RDWR)
            else:
                self._open.append(line.dup())

    def cut(self) -> None:
        """Whoever reads from them comes to an end at once."""
        with self._lock:
            self._over = True
            for line in self._open:
                with suppress(OSError), line:
                    line.shutdown(socket.SHUT_RDWR)
            self._open.clear()


class _Plain(http.client.HTTPConnection):
    lines: _Lines

    def connect(self) -> None:
        super().connect()
        self.lines.add(self.sock)


class _Encrypted(http.client.HTTPSConnection, _Plain):
    """Connects as _Plain does, before it greets."""


def _on(lines: _Lines, kind: type[_Plain], *given: Any, **named: Any) -> _Plain:
    made = kind(*given, **named)
    made.lines = lines
    return made


class _Http(urllib.request.HTTPHandler):
    def __init__(self, lines: _Lines) -> None:
        super().__init__()
        self._lines = lines

    def http_open(self, req: urllib.request.Request) -> Any:
        make: Any = partial(_on, self._lines, _Plain)
        return self.do_open(make, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, lines: _Lines) -> None:
        super().__init__()
        self._lines = lines

    def https_open(self, req: urllib.request.Request) -> Any:
        make: Any = partial(_on, self._lines, _Encrypted)
        return self.do_open(make, req)


def _whole(request: urllib.request.Request) -> tuple[int, str, bytes]:
    """Status, reason and body of an answer; TimeoutError if it takes too long as a whole."""
    got: queue.SimpleQueue[tuple[int, str, bytes] | BaseException] = queue.SimpleQueue()
    lines = _Lines()

    def ask() -> None:
        try:
            got.put(_answer(request, lines))
        except BaseException as error:
            got.put(error)

    # A time limit of a socket is for each of its reads. So another thread reads, and its connection is cut if it must
    # be: also while it greets or reads the headers, where nothing could look at a clock.
    threading.Thread(target=ask, name="headrace-registry", daemon=True).start()
    try:
        found = got.get(timeout=_DEADLINE)
    except queue.Empty:
        raise TimeoutError(f"no complete answer in {_DEADLINE:g} s") from None
    finally:
        lines.cut()
    if isinstance(found, BaseException):
        raise found
    return found


def _answer(request: urllib.request.Request, lines: _Lines) -> tuple[int, str, bytes]:
    try:
        opener = urllib.request.build_opener(_SamePlace, _Http(lines), _Https(lines))
        with opener.open(request, timeout=_TIMEOUT) as answer:
            return answer.status, answer.reason, answer.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            try:
                said = error.read(_MAX_BYTES + 1)
            except (OSError, http.client.HTTPException):
                said = b""
            return error.code, str(error.reason), said


def _request(url: str, path: str, body: dict[str, str] | None) -> urllib.request.Request:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    address = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + path, "", ""))
    headers = {"Accept": f"{_CONTENT}, application/json"}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(unquote(user).encode()).decode()
    if body is None:
        return urllib.request.Request(address, headers=headers)  # noqa: S310
    headers["Content-Type"] = _CONTENT
    return urllib.request.Request(address, json.dumps(body).encode(), headers, method="POST")  # noqa: S310


def _refused(status: int, reason: str, url: str, what: str) -> HeadraceError:
    where = f"the schema registry at {masked(url)}"
    if status in _BUSY or status >= 500:
        return RetriableError(f"{where} cannot answer now: {status} {reason}")
    if status == 409:
        return ConfigError(
            f"{where} refuses {what}, as incompatible with what is there: {reason}",
            hint="give the columns their earlier types, or name another subject=, or set its compatibility there",
        )
    if status in (401, 403):
        return ConfigError(f"{where} refuses this user for {what}: {status} {reason}", hint=_EXAMPLE)
    return (_NotFound if status == 404 else ConfigError)(
        f"{where} does not take {what}: {status} {reason}",
        hint="check the address, with its path, and schema= if it is given",
    )


def _reason(answer: bytes, reason: str) -> tuple[int | None, str]:
    """The registry's own code and words; no code where something else answers."""
    code: int | None = None
    try:
        told = json.loads(answer)
        given, said = told.get("error_code"), str(told["message"])
        code = given if isinstance(given, int) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        said = reason
    return code, said if len(said) <= _MOST else said[:_MOST] + "…"


def _unreachable(error: OSError | http.client.HTTPException, url: str) -> HeadraceError:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    where = f"the schema registry at {masked(url)}"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ConfigError(f"{where} is not trusted: {cause.verify_message}", hint="export SSL_CERT_FILE=<its CA>")
    return RetriableError(
        f"{where} does not answer: {str(cause)[:_MOST]}", hint="headrace dev up schema-registry starts one here"
    )


def _foreign(url: str) -> ConfigError:
    return ConfigError(
        f"what answers at {masked(url)} is no schema registry", hint="check the address, with its path if it has one"
    )
