"""The adb server's wire protocol, as much of it as farm needs, with one wall-clock deadline over each exchange.

Own code because adbutils' time-outs are per receive, its push has none, and it starts a server by itself even when told
to use one elsewhere. Protocol: adb's docs/dev/services.md (smart sockets), protocol of `shell,v2` in shell_protocol.h,
`sync:` in docs/dev/sync.md.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterator
from types import TracebackType

from farm.errors import DeadlineExceeded, DeviceLost
from farm.transports.base import Deadline

SYNC_BLOCK = 64 * 1024
"""Largest DATA block adbd takes (SYNC_DATA_MAX)."""
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
"""Packet ids of `shell,v2`; each packet is id (1 byte), length (4 bytes, little endian), data."""


Dial = Callable[[tuple[str, int], float], socket.socket]
"""(address, seconds) → a connected socket; see gateway.Gateway.dial."""


class AdbRefused(Exception):
    """The server or the device answered FAIL, with its words."""


class AdbSocket:
    """One connection to an adb server. Leaving the `with` block, or `cut` from any thread, ends it."""

    def __init__(self, server: tuple[str, int], deadline: Deadline, who: str, dial: Dial | None = None) -> None:
        """Connect, by `dial` where the server is behind a gateway. Raises OSError if nobody listens."""
        self._deadline, self._who = deadline, who
        limit_s = max(0.05, min(deadline.left_s, 5.0))
        if dial is not None:
            self._socket = dial(server, max(limit_s, deadline.left_s))
            return
        self._socket = socket.create_connection(server, timeout=limit_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> AdbSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def cut(self) -> None:
        """End it now and wake whoever waits on it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it had ended already
            pass

    def request(self, service: str) -> None:
        """Ask for a service and wait for OKAY. Raises AdbRefused."""
        name = service.encode()
        self.send(b"%04x" % len(name) + name)
        self._check_okay()

    def _check_okay(self) -> None:
        answer = self.take(4)
        if answer == b"FAIL":
            raise AdbRefused(self.text())
        if answer != b"OKAY":
            raise AdbRefused(f"an answer that is no adb ({answer!r})")

    def text(self) -> str:
        """Read a block: four hexadecimal digits of length, then the text."""
        digits = self.take(4)
        try:
            size = int(digits, 16)
        except ValueError as e:
            raise AdbRefused(f"an answer that is no adb ({digits!r})") from e
        return self.take(size).decode(errors="replace")

    def send(self, data: bytes) -> None:
        self._arm()
        try:
            self._socket.sendall(data)
        except OSError as e:
            raise self._broken(e) from e

    def take(self, count: int) -> bytes:
        """Read exactly so many bytes."""
        got = bytearray(count)
        view = memoryview(got)
        while view:
            self._arm()
            try:
                n = self._socket.recv_into(view)
            except OSError as e:
                raise self._broken(e) from e
            if not n:
                raise DeviceLost(f"{self._who} went away in the middle of an answer")
            view = view[n:]
        return bytes(got)

    def _arm(self) -> None:
        if self._deadline.over:
            raise self._late()
        self._socket.settimeout(self._deadline.left_s)

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self._who} gave no answer within {self._deadline.limit_s:g} s")

    def _broken(self, e: OSError) -> DeviceLost | DeadlineExceeded:
        return self._late() if isinstance(e, TimeoutError) else DeviceLost(f"the link to {self._who} broke: {e}")

    # --- shell ----------------------------------------------------------------------------------------------------

    def talk(self, stdin: bytes, *, packets: bool, take: Callable[[int, bytes], None]) -> None:
        """Feed a program and hand out what it says until the other side ends the stream or sends its exit packet.

        take(id, data): id is STDOUT for everything when there are no packets (then stdin cannot be ended either).
        Raises DeadlineExceeded when time is over, DeviceLost when the link breaks.
        """
        rest = memoryview(_packets(stdin) if packets else stdin)
        buffer = bytearray()
        self._socket.setblocking(False)
        while True:
            if self._deadline.over:
                raise self._late()
            try:
                readable, writable, _ = select.select(
                    [self._socket], [self._socket] if rest else [], [], self._deadline.left_s
                )
                if writable:
                    rest = self._some(rest)
                if not readable:
                    continue
                data = self._socket.recv(1 << 18)
            except BlockingIOError:
                continue
            except OSError as e:
                raise self._broken(e) from e
            except ValueError as e:  # closed by another thread
                raise DeviceLost(f"the link to {self._who} was closed") from e
            if not data:
                return
            if not packets:
                take(STDOUT, data)
                continue
            buffer += data
            for kind, body in _unpack(buffer):
                take(kind, body)
                if kind == EXIT:
                    return

    def _some(self, rest: memoryview) -> memoryview:
        try:
            return rest[self._socket.send(rest) :]
        except BlockingIOError:
            return rest
        except (BrokenPipeError, ConnectionResetError):  # it need not read; what it says tells more
            return rest[:0]

    # --- files ----------------------------------------------------------------------------------------------------

    def sync_send(self, path: str, blocks: Iterator[bytes], mode: int, mtime_s: int) -> None:
        """Write a far file, on a socket that asked for `sync:`. Raises AdbRefused with the device's words."""
        self._sync_write(_sync(b"SEND", f"{path},{0o100000 | mode}".encode()))
        for block in blocks:
            for at in range(0, len(block), SYNC_BLOCK):
                self._sync_write(_sync(b"DATA", block[at : at + SYNC_BLOCK]))
        self._sync_write(b"DONE" + struct.pack("<I", mtime_s))
        self._sync_status()

    def sync_receive(self, path: str, write: Callable[[bytes], object]) -> None:
        """Read a far file, on a socket that asked for `sync:`. Raises AdbRefused with the device's words."""
        self._sync_write(_sync(b"RECV", path.encode()))
        while True:
            word, size = self._sync_head()
            if word == b"DONE":
                return
            if word == b"FAIL":
                raise AdbRefused(self.take(size).decode(errors="replace"))
            if word != b"DATA" or size > SYNC_BLOCK:
                raise AdbRefused(f"an answer that is no adb ({word!r})")
            write(self.take(size))

    def _sync_head(self) -> tuple[bytes, int]:
        word, size = struct.unpack("<4sI", self.take(8))
        return word, size

    def _sync_status(self) -> None:
        word, size = self._sync_head()
        if word != b"OKAY":
            raise AdbRefused(self.take(min(size, 1 << 16)).decode(errors="replace") or repr(word))

    def _sync_write(self, data: bytes) -> None:
        """Send, but listen as well: a device that gives up says FAIL and stops reading."""
        rest = memoryview(data)
        while rest:
            self._arm()
            try:
                readable, writable, _ = select.select([self._socket], [self._socket], [], self._deadline.left_s)
                if readable:
                    self._sync_status()
                    raise AdbRefused("the device ended the transfer too early")
                if writable:
                    rest = rest[self._socket.send(rest) :]
            except OSError as e:
                raise self._broken(e) from e
            except ValueError as e:
                raise DeviceLost(f"the link to {self._who} was closed") from e


def _sync(word: bytes, body: bytes) -> bytes:
    return word + struct.pack("<I", len(body)) + body


def _packets(stdin: bytes) -> bytes:
    parts = [stdin[at : at + SYNC_BLOCK] for at in range(0, len(stdin), SYNC_BLOCK)]
    return b"".join(struct.pack("<BI", STDIN, len(p)) + p for p in parts) + struct.pack("<BI", CLOSE_STDIN, 0)


def _unpack(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take whole packets off the front of the buffer."""
    at = 0
    try:
        while len(buffer) - at >= 5:
            kind, size = struct.unpack_from("<BI", buffer, at)
            if len(buffer) - at < 5 + size:
                return
            body = bytes(buffer[at + 5 : at + 5 + size])
            at += 5 + size
            yield kind, body
    finally:
        del buffer[:at]
