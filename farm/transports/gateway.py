"""Ports of a lab host, reached over one SSH connection: how phones behind a host's own adb server are used.

`adb.py` asks a Gateway for a socket instead of connecting itself. No local port is opened: each socket is one end of a
pair, and a thread carries bytes between the other end and a channel of the host's connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path

import paramiko

from farm.errors import DeviceLost, DeviceUnavailable
from farm.transports.base import Deadline
from farm.transports.ssh_connect import Connection, open_connection

_BLOCK = 1 << 18
_TURN_S = 0.05
"""How long a full window is waited for before both sides are looked at again."""


class Gateway:
    """One host. `host`: what `ssh` takes. Safe for many threads; connects when first needed, and again after a loss."""

    def __init__(self, host: str, *, config: Path | None = None, known_hosts: Path | None = None) -> None:
        self.host = host
        self._config, self._known_hosts = config, known_hosts
        self._lock = threading.Lock()
        self._link: Connection | None = None
        self._closed = False

    def dial(self, address: tuple[str, int], timeout: float) -> socket.socket:
        """Connect to an address as the host sees it. Raises InfraError; DeviceUnavailable if nobody listens there."""
        deadline = Deadline(timeout)
        transport = self._connected(deadline)
        try:
            channel = transport.open_channel(
                "direct-tcpip", address, ("127.0.0.1", 0), timeout=max(0.1, deadline.left_s)
            )
        except paramiko.ChannelException as e:
            raise DeviceUnavailable(
                f"nothing listens at {address[0]}:{address[1]} of the host {self.host}; start its adb server there:"
                f" ssh {self.host} adb start-server"
            ) from e
        except (paramiko.SSHException, EOFError, OSError) as e:
            self._drop(transport)
            raise DeviceLost(f"the connection to the host {self.host} broke: {e or type(e).__name__}") from e
        near, far = socket.socketpair()
        threading.Thread(target=_carry, args=(far, channel), name=f"gateway {self.host}", daemon=True).start()
        return near

    def close(self) -> None:
        """End the connection and every socket through it."""
        with self._lock:
            self._closed = True
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connected(self, deadline: Deadline) -> paramiko.Transport:
        with self._lock:
            if self._closed:
                raise DeviceLost(f"the connection to the host {self.host} was closed")
            if self._link is None or not self._link.transport.is_active():
                self._link = open_connection(self.host, deadline, config=self._config, known_hosts=self._known_hosts)
            return self._link.transport

    def _drop(self, transport: paramiko.Transport) -> None:
        """A connection that failed once is not trusted again."""
        with self._lock:
            if self._link is not None and self._link.transport is transport:
                self._link.close()
                self._link = None


class Gateways:
    """The gateways of one run, by host; phones of one host share its connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, Gateway] = {}

    def of(self, host: str) -> Gateway:
        with self._lock:
            return self._made.setdefault(host, Gateway(host))

    def close(self) -> None:
        with self._lock:
            made = list(self._made.values())
        for gateway in made:
            gateway.close()

    def __enter__(self) -> Gateways:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _carry(near: socket.socket, channel: paramiko.Channel) -> None:
    """Move bytes both ways until either side ends."""
    rest = b""
    channel.setblocking(0)
    near.setblocking(False)
    try:
        while True:
            readers: list[int | socket.socket] = [channel.fileno(), *([] if rest else [near])]
            readable, _, _ = select.select(readers, [], [], _TURN_S if rest else None)
            if near in readable:
                with contextlib.suppress(BlockingIOError):
                    rest = near.recv(_BLOCK)
                    if not rest:
                        return
            while rest and channel.send_ready():
                rest = rest[channel.send(rest) :]
            if channel.recv_ready():
                _send_all(near, channel.recv(_BLOCK))
            elif channel.eof_received or channel.closed:
                return
    except (OSError, EOFError, ValueError, paramiko.SSHException):
        return
    finally:
        near.close()
        with contextlib.suppress(EOFError, OSError, paramiko.SSHException):  # the connection may be gone altogether
            channel.close()


def _send_all(near: socket.socket, data: bytes) -> None:
    """A reader that is slow is waited for; one that is gone raises OSError."""
    near.setblocking(True)
    try:
        near.sendall(data)
    finally:
        near.setblocking(False)
