"""HTTP requests to a schema registry: with a deadline for the whole response, a size limit, and safe redirects."""

from __future__ import annotations

import base64
import http.client
import json
import queue
import socket
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.errors import ConfigError
from headrace.support.redaction import masked

TIMEOUT = 10.0
"""Seconds without a byte."""
DEADLINE = 30.0
"""Seconds for a whole response: one that drips would never time out."""
MAX_BYTES = 10_000_000
"""Of one response. Registries reject schemas that are far smaller."""
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_SHOWN_URL = 500


class Response(NamedTuple):
    """`body` has one byte more than MAX_BYTES if the response is larger."""

    status: int
    reason: str
    body: bytes


def build_request(url: str, path: str, body: dict[str, str] | None) -> urllib.request.Request:
    """GET, or POST with a body; user and password of the URL become a header."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    address = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + path, "", ""))
    headers = {"Accept": f"{_CONTENT_TYPE}, application/json"}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(unquote(user).encode()).decode()
    if body is None:
        return urllib.request.Request(address, headers=headers)  # noqa: S310
    headers["Content-Type"] = _CONTENT_TYPE
    return urllib.request.Request(address, json.dumps(body).encode(), headers, method="POST")  # noqa: S310


def send(request: urllib.request.Request) -> Response:
    """Send a request. TimeoutError if the whole response takes longer than DEADLINE."""
    result: queue.SimpleQueue[Response | BaseException] = queue.SimpleQueue()
    sockets = _Sockets()

    def run() -> None:
        try:
            result.put(_send(request, sockets))
        except BaseException as error:
            result.put(error)

    # The timeout of a socket is for each of its reads. So another thread reads, and its socket is shut down at the
    # deadline: also during the TLS handshake or in the headers, where no other code could check a clock.
    threading.Thread(target=run, name="headrace-registry", daemon=True).start()
    try:
        response = result.get(timeout=DEADLINE)
    except queue.Empty:
        raise TimeoutError(f"no complete response in {DEADLINE:g} s") from None
    finally:
        sockets.shut_down()
    if isinstance(response, BaseException):
        raise response
    return response


def _send(request: urllib.request.Request, sockets: _Sockets) -> Response:
    try:
        opener = urllib.request.build_opener(SafeRedirects, _Handler(sockets))
        with opener.open(request, timeout=TIMEOUT) as response:
            return Response(response.status, response.reason, response.read(MAX_BYTES + 1))
    except urllib.error.HTTPError as error:
        with error:
            try:
                body = error.read(MAX_BYTES + 1)
            except (OSError, http.client.HTTPException):
                body = b""
            return Response(error.code, str(error.reason), body)


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but sends no password to another server and never changes from TLS to plain text.

    The body of a redirect is not read: urllib would read all of it, whatever its size.
    """

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
                f"the schema registry at {masked(req.full_url)} redirects to {masked(newurl[:_SHOWN_URL])},"
                " which Headrace does not follow:"
                f" {'it is not encrypted' if plain else 'the password is for the first address only'}",
                hint="give the address of the registry itself",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Sockets:
    """The sockets of one request, so that another thread can shut them down."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._shut_down = False

    def add(self, sock: socket.socket) -> None:
        """Keep a duplicate: TLS takes over the original before its handshake."""
        with self._lock:
            if self._shut_down:
                sock.shutdown(socket.SHUT_RDWR)
            else:
                self._open.append(sock.dup())

    def shut_down(self) -> None:
        """End all reads from the sockets at once."""
        with self._lock:
            self._shut_down = True
            for sock in self._open:
                with suppress(OSError), sock:
                    sock.shutdown(socket.SHUT_RDWR)
            self._open.clear()


class _Connection(http.client.HTTPConnection):
    sockets: _Sockets

    def connect(self) -> None:
        super().connect()
        self.sockets.add(self.sock)


class _TlsConnection(http.client.HTTPSConnection, _Connection):
    """Its socket is added by _Connection, before the handshake."""


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens the connections of one request and adds their sockets to `sockets`."""

    def __init__(self, sockets: _Sockets) -> None:
        super().__init__()
        self._sockets = sockets

    def http_open(self, req: urllib.request.Request) -> Any:
        return self._open(_Connection, req)

    def https_open(self, req: urllib.request.Request) -> Any:
        return self._open(_TlsConnection, req)

    def _open(self, connection_class: type[_Connection], req: urllib.request.Request) -> Any:
        def connect(*args: Any, **options: Any) -> Any:
            connection = connection_class(*args, **options)
            connection.sockets = self._sockets
            return connection

        return self.do_open(connect, req)
