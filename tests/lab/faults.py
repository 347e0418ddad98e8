"""Faults of links, on demand: each is one that real farms report and that a trigger here reproduces.

The phone's own faults are in phone_adbd.FAULTS (`Phones.tell(faults={...})`); a host's sessions die by `Sshd.sessions`.
Here are those of the wire between: a proxy that freezes, cuts or slows, listeners that never speak, and an adb server
that reports states only real hardware gets into.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator


class Proxy:
    """A TCP proxy on loopback in front of `target`.

    freeze(): bytes stop in both directions, connections stay open (a cable that fell out, a stopped peer).
    cut(): every connection is reset. cut_after(n): so after n more bytes towards the target.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._frozen = threading.Event()
        self._ended = threading.Event()
        self._left: int | None = None
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._pairs.add((near, far))
            self._start(self._pump, near, far)

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while not self._ended.is_set():
                if self._frozen.is_set():
                    self._ended.wait(0.02)
                    continue
                readable, _, _ = select.select([near, far], [], [], 0.1)
                for source in readable:
                    data = source.recv(1 << 16)
                    if not data:
                        return self._drop(near, far)
                    if source is near and self._left is not None:
                        self._left -= len(data)
                        if self._left < 0:
                            self._left = None
                            return self._drop(near, far)
                    (far if source is near else near).sendall(data)
        self._drop(near, far)
        return None

    def _drop(self, near: socket.socket, far: socket.socket) -> None:
        for one in (near, far):
            with contextlib.suppress(OSError):
                # Linger 0: the other side gets a reset, as from a peer that lost power.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        with self._lock:
            self._pairs.discard((near, far))

    def freeze(self) -> None:
        self._frozen.set()

    def thaw(self) -> None:
        self._frozen.clear()

    def cut(self) -> None:
        with self._lock:
            pairs = list(self._pairs)
        for near, far in pairs:
            self._drop(near, far)

    def cut_after(self, count: int) -> None:
        self._left = count

    def stop(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)


@contextlib.contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    """A proxy for the length of a block."""
    made = Proxy(target)
    try:
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def silent_listener() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def scripted_adb_server(answers: dict[str, str]) -> Iterator[int]:
    """An adb server that answers host requests from a table and everything else with FAIL.

    A stand-in on purpose: unauthorized, no permissions, two phones of one serial and mDNS names need hardware.
    """
    ended = threading.Event()

    def serve(listener: socket.socket) -> None:
        while not ended.is_set():
            try:
                one, _ = listener.accept()
            except OSError:
                return
            with one, contextlib.suppress(OSError, ValueError):
                size = int(_exactly(one, 4), 16)
                request = _exactly(one, size).decode()
                if request in answers:
                    text = answers[request].encode()
                    one.sendall(b"OKAY%04x" % len(text) + text)
                else:
                    text = f"unknown host service {request}".encode()
                    one.sendall(b"FAIL%04x" % len(text) + text)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, args=(listener,), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        ended.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def _exactly(one: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        data = one.recv(count - len(got))
        if not data:
            raise ValueError("the client went away")
        got += data
    return got
