"""A TCP proxy for a server. If it is shut, it cuts and refuses connections while the server continues to run."""

import contextlib
import socket
import threading

from headrace import events


class TcpProxy:
    """`with TcpProxy("127.0.0.1:9042") as proxy: ... proxy.address`."""

    def __init__(self, server):
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._open = []
        self._lock = threading.Lock()
        self._listener = None
        self.address = ""

    def __enter__(self):
        self._listen(0)
        return self

    def __exit__(self, *_):
        self.close()

    def open(self):
        """Open the proxy; does nothing if it is open."""
        if self._listener is None:
            self._listen(int(self.address.rpartition(":")[2]))

    def close(self):
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # close alone would leave accept() waiting
            listener.close()
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            _cut(end)

    def _listen(self, port):
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def _accept(self, listener):
        while True:
            try:
                outside, _ = listener.accept()
            except OSError:
                return
            inside = socket.create_connection(self._server)
            with self._lock:
                self._open += [outside, inside]
            for start, end in ((outside, inside), (inside, outside)):
                threading.Thread(target=_carry, args=[start, end], daemon=True).start()


def _carry(start, end):
    with contextlib.suppress(OSError):
        while data := start.recv(65_536):
            end.sendall(data)
    _cut(start)
    _cut(end)


def _cut(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


class CutAfterFirstBatch:
    """An observer that shuts the proxy after the run's first batch with records, and opens it at the first retry."""

    def __init__(self, proxy):
        self._proxy = proxy
        self.noticed = []

    def __call__(self, event):
        if isinstance(event, events.Retrying):
            self.noticed.append(event.error)
            self._proxy.open()
        elif isinstance(event, events.BatchDone) and len(event.batch) and not self.noticed:
            self._proxy.close()
