"""What stands between a store and its server, and breaks when told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import make_url

__all__ = ["Wire", "wire"]


class Wire:
    """Forwards connections to a server; cuts or silences them on demand."""

    def __init__(self, url: str) -> None:
        self._server = make_url(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._cut: bytes | None = None
        self.silent = False
        """Whether what the server says is swallowed."""
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Of the same database through this wire."""
        port = self._listener.getsockname()[1]
        changed = self._server.set(host="127.0.0.1", port=port, query={})
        return changed.render_as_string(hide_password=False)

    def lose_answer_to(self, words: str) -> None:
        """Cut the next connection on which these words are sent, once the server has answered."""
        self._cut = words.encode()

    def _connect(self) -> socket.socket:
        folder = self._server.query.get("host")
        port = self._server.port or self._server.query.get("port") or 5432
        if isinstance(folder, str) and folder.startswith("/"):
            found = socket.socket(socket.AF_UNIX)
            found.connect(f"{folder}/.s.PGSQL.{port}")
            return found
        return socket.create_connection((self._server.host, int(str(port))))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._connect()
                self._sockets += [client, server]
                lost = threading.Event()
                for source, target, answers in ((client, server, False), (server, client, True)):
                    threading.Thread(
                        target=self._forward, args=(source, target, answers, lost), daemon=True
                    ).start()

    def _forward(
        self, source: socket.socket, target: socket.socket, answers: bool, lost: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not answers and self._cut is not None and self._cut in data:
                    self._cut = None
                    lost.set()
                elif answers and lost.is_set():
                    self.cuts += 1
                    break
                if not (answers and self.silent):
                    target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        for end in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                end.close()


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    """A wire to the server of `url`."""
    made = Wire(url)
    try:
        yield made
    finally:
        made.close()
