"""A proxy on loopback that cuts the connection at the nth request that writes: before, amid or after it."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

How = Literal["before", "middle", "after"]
WRITES = re.compile(rb"(?:PUT|POST|PATCH|DELETE) /\S* HTTP/1\.1\r\n")
SOME = 1000
"""Bytes of a body that go through where the cut is in the middle."""


class Proxy:
    """Forwards to `target`; `count` writes went by since the last `cut`."""

    def __init__(self, target: int) -> None:
        self.target, self.count, self.nth = target, 0, 0
        self.how: How = "before"
        self.then: Callable[[], object] = lambda: None
        self.stays = self.down = False
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.server.getsockname()[1])
        self.lock = threading.Lock()

    def cut(
        self, nth: int, how: How = "before", then: Callable[[], object] = lambda: None, *, stays: bool = False
    ) -> None:
        """Cut at the nth write from now on (0: never), and do `then` at that moment; once, or all that comes after."""
        with self.lock:
            self.count, self.nth, self.how, self.then = 0, nth, how, then
            self.stays, self.down = stays, False

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.server.accept()
                threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    def carry(self, client: socket.socket) -> None:
        try:
            if self.down:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        swallow = threading.Event()
        threading.Thread(target=self.back, args=(server, client, swallow), daemon=True).start()
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if not self.forth(data, server, swallow):
                    break
        close(client, server)

    def forth(self, data: bytes, server: socket.socket, swallow: threading.Event) -> bool:
        """Pass on what the client sent; False where the connection is to be cut now."""
        for found in WRITES.finditer(data):
            with self.lock:
                self.count += 1
                here = self.count == self.nth
            if here:
                self.down = self.stays
                return self.at(data, found.start(), server, swallow)
        server.sendall(data)
        return True

    def at(self, data: bytes, start: int, server: socket.socket, swallow: threading.Event) -> bool:
        if self.how == "after":
            swallow.set()
            server.sendall(data)
            return True
        if self.how == "middle":
            body = data.find(b"\r\n\r\n", start)
            server.sendall(data[: body + 4 + SOME])
        self.then()
        return False

    def back(self, server: socket.socket, client: socket.socket, swallow: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if swallow.is_set():
                    self.then()
                    break
                client.sendall(data)
        close(client, server)


def close(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextmanager
def cutting(target: int) -> Iterator[Proxy]:
    proxy = Proxy(target)
    threading.Thread(target=proxy.run, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.server.close()
