"""Opening an SSH connection: ssh_config, jump hosts, host keys, our keys. `ssh.py` uses what comes out.

Host keys are always verified. An unknown one is refused with its fingerprint and the command that accepts it; a
changed one is refused, whatever anybody says.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import getpass
import hashlib
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.hostkeys import InvalidHostKey

from farm.errors import DeviceLost, DeviceUnavailable, HostKeyRefused, InvalidInput
from farm.transports.base import Deadline

_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
"""Fastest first: paramiko moves 139-158 MB/s with GCM, 66-107 with its own first choice (CTR and a MAC in Python)."""
_KEY_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")
_MAX_JUMPS = 8
_SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")


@dataclass(slots=True, kw_only=True)
class Connection:
    """An authenticated transport and the jump hosts it goes through, nearest to us first."""

    transport: paramiko.Transport
    jumps: list[paramiko.Transport] = field(default_factory=list)

    def close(self) -> None:
        for transport in (self.transport, *reversed(self.jumps)):
            transport.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKey:
    """A host's key as it was offered. name: as known_hosts writes it. line: what known_hosts would hold."""

    name: str
    kind: str
    fingerprint: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hop:
    host: str
    port: int
    user: str
    known_as: str
    known_hosts: tuple[Path, ...]
    identities: tuple[Path, ...]
    identities_only: bool


def fingerprint(key: paramiko.PKey) -> str:
    """The SHA256 fingerprint as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


def open_connection(
    host: str, deadline: Deadline, *, config: Path | None = None, known_hosts: Path | None = None
) -> Connection:
    """Connect and log in. `host`: an alias of ssh_config or ``user@name:port``.

    Raises HostKeyRefused, DeviceUnavailable (refused, unreachable, no key accepted) or DeviceLost (it broke meanwhile).
    """
    hops = _route(host, _read_config(config), known_hosts)
    opened: list[paramiko.Transport] = []
    try:
        for hop in hops:
            transport = _begin(hop, opened[-1] if opened else None, deadline)
            opened.append(transport)
            _verify(transport, hop)
            _log_in(transport, hop, deadline)
    except BaseException as e:
        for transport in reversed(opened):
            transport.close()
        if isinstance(e, (paramiko.SSHException, EOFError, OSError)):
            raise _mapped(e, host, deadline) from e
        raise
    return Connection(transport=opened[-1], jumps=opened[:-1])


def offered_key(host: str, deadline: Deadline, *, config: Path | None = None) -> HostKey:
    """Ask a host for its key, for `farm trust`: nobody has verified it yet, a person must.

    Jump hosts on the way must be known already.
    """
    hops = _route(host, _read_config(config), None)
    opened: list[paramiko.Transport] = []
    try:
        for hop in hops:
            transport = _begin(hop, opened[-1] if opened else None, deadline)
            opened.append(transport)
            if hop is not hops[-1]:
                _verify(transport, hop)
                _log_in(transport, hop, deadline)
        key = opened[-1].get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as e:
        raise _mapped(e, host, deadline) from e
    finally:
        for transport in reversed(opened):
            transport.close()
    name = hops[-1].known_as
    return HostKey(
        name=name,
        kind=key.get_name(),
        fingerprint=fingerprint(key),
        line=f"{name} {key.get_name()} {key.get_base64()}",
    )


def known_fingerprints(host: str, *, config: Path | None = None) -> tuple[str, ...]:
    """Fingerprints that known_hosts holds for a host."""
    return tuple(fingerprint(key) for key in _known(_route(host, _read_config(config), None)[-1]))


def known_hosts_file(host: str, *, config: Path | None = None) -> Path:
    """The file that `ssh` would write a host's key to."""
    return _route(host, _read_config(config), None)[-1].known_hosts[0]


def _read_config(path: Path | None) -> paramiko.SSHConfig:
    file = path or Path.home() / ".ssh" / "config"
    if path is None and not file.is_file():
        return paramiko.SSHConfig()
    try:
        return paramiko.SSHConfig.from_path(str(file))
    except (OSError, ValueError, paramiko.SSHException) as e:
        raise InvalidInput(f"{file}: cannot be read as an ssh_config: {e}") from e


def _split(spec: str) -> tuple[str | None, str, int | None]:
    """``[user@]name[:port]``, an IPv6 address with a port in brackets; also as ssh:// URI."""
    user, _, rest = spec.removeprefix("ssh://").rstrip("/").rpartition("@")
    found = re.fullmatch(
        r"\[([^\]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?|([0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%\w+)?)", rest
    )
    if not found or rest.startswith("-"):
        raise InvalidInput(f"{spec!r} is no SSH host; write an alias of ssh_config, name, user@name or user@name:port")
    port = found[2] or found[4]
    return user or None, found[1] or found[3] or found[5], int(port) if port else None


def _route(host: str, config: paramiko.SSHConfig, known_hosts: Path | None) -> list[_Hop]:
    """The hops to a host, nearest first. Raises InvalidInput on a circle of jumps or an option we cannot follow."""
    hops: list[_Hop] = []

    def add(spec: str, trail: tuple[str, ...]) -> None:
        if len(trail) > _MAX_JUMPS or spec in trail:
            raise InvalidInput(f"the ProxyJump of {host} goes in a circle: {' → '.join((*trail, spec))}")
        user, alias, port = _split(spec)
        found = config.lookup(alias)
        if found.get("proxycommand", "none").lower() != "none":
            raise InvalidInput(
                f"ssh_config gives {alias} a ProxyCommand, which farm does not run; write it as ProxyJump"
            )
        jump = found.get("proxyjump", "none")
        if jump.lower() != "none":
            for step in jump.split(","):
                add(step.strip(), (*trail, spec))
        name = found.get("hostname", alias)
        number = port or int(found.get("port", 22))
        known_as = found.get("hostkeyalias", name if number == 22 else f"[{name}]:{number}")
        files = [known_hosts] if known_hosts else _paths(found.get("userknownhostsfile", "~/.ssh/known_hosts"))
        ids: str | list[str] = found.get("identityfile", [])
        hops.append(
            _Hop(
                host=name,
                port=number,
                user=user or found.get("user") or getpass.getuser(),
                known_as=known_as,
                known_hosts=(*files, *(() if known_hosts else (_SYSTEM_KNOWN_HOSTS,))),
                identities=tuple(Path(i).expanduser() for i in ([ids] if isinstance(ids, str) else ids)),
                identities_only=found.get("identitiesonly", "no").lower() == "yes",
            )
        )

    add(host, ())
    return hops


def _paths(words: str) -> list[Path]:
    return [Path(word).expanduser() for word in words.split()]


def _begin(hop: _Hop, through: paramiko.Transport | None, deadline: Deadline) -> paramiko.Transport:
    """Connect and exchange keys; nothing is verified yet."""
    left = max(0.1, deadline.left_s)
    if through is None:
        sock: socket.socket | paramiko.Channel = socket.create_connection((hop.host, hop.port), timeout=left)
        assert isinstance(sock, socket.socket)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    else:
        sock = through.open_channel("direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=left)
    try:
        transport = paramiko.Transport(sock)
        transport.daemon = True
        options = transport.get_security_options()
        options.ciphers = tuple(sorted(options.ciphers, key=lambda c: _CIPHERS.index(c) if c in _CIPHERS else 99))
        kinds = {key.get_name() for key in _known(hop)}
        if kinds:
            # A host has keys of several kinds; the one we know must be asked for, or it looks changed.
            options.key_types = tuple(
                sorted(
                    options.key_types, key=lambda t: not (t in kinds or (t.startswith("rsa-") and "ssh-rsa" in kinds))
                )
            )
        transport.banner_timeout = transport.handshake_timeout = max(0.1, deadline.left_s)
        transport.set_keepalive(15)
        transport.start_client(timeout=max(0.1, deadline.left_s))
    except BaseException:
        with contextlib.suppress(Exception):
            transport.close()
        sock.close()
        raise
    return transport


def _known(hop: _Hop) -> list[paramiko.PKey]:
    """Keys that known_hosts holds for this name."""
    return [key for marker, names, key in _known_lines(hop) if not marker and _matches(hop.known_as, names)]


def _known_lines(hop: _Hop) -> Iterator[tuple[str, list[str], paramiko.PKey]]:
    """(marker, names, key) of each line of known_hosts that holds a key; paramiko's reader dies of markers."""
    for file in hop.known_hosts:
        if not file.is_file():
            continue
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError as e:
            raise InvalidInput(f"{file}: cannot be read as known_hosts: {e}") from e
        for line in lines:
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) >= 3 and not words[0].startswith("#"):
                with contextlib.suppress(paramiko.SSHException, ValueError, InvalidHostKey):
                    entry = paramiko.hostkeys.HostKeyEntry.from_line(" ".join(words[:3]))
                    if entry is not None and entry.key is not None:
                        yield marker, words[0].split(","), entry.key


def _matches(name: str, patterns: list[str]) -> bool:
    """Is `name` meant by a line's names: plain, hashed, with wildcards, or shut out by a leading '!'?"""
    hit = False
    for pattern in patterns:
        wanted = pattern.removeprefix("!")
        if wanted.startswith("|1|"):
            same = paramiko.HostKeys.hash_host(name, wanted) == wanted
        else:
            # Brackets part a name from its port here; they are no wildcard.
            same = fnmatch.fnmatchcase(name.lower(), wanted.lower().replace("[", "[[]"))
        if same and pattern.startswith("!"):
            return False
        hit = hit or same
    return hit


def _verify(transport: paramiko.Transport, hop: _Hop) -> None:
    key = transport.get_remote_server_key()
    offered = f"{key.get_name()} {fingerprint(key)}"
    known = _known(hop)
    if any(marker == "@revoked" and bad == key for marker, _, bad in _known_lines(hop)):
        raise HostKeyRefused(f"{hop.known_as} offers a key that known_hosts marks as revoked: {offered}")
    if not known:
        name = hop.host if hop.port == 22 else f"{hop.host}:{hop.port}"
        raise HostKeyRefused(
            f"the host key of {hop.known_as} is unknown: {offered}. Compare the fingerprint with the host's own"
            f" (ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub there), then accept it with: farm trust {name}"
        )
    if key not in known:
        before = ", ".join(f"{k.get_name()} {fingerprint(k)}" for k in known)
        raise HostKeyRefused(
            f"the host key of {hop.known_as} has CHANGED: known is {before}, offered is {offered}. Somebody may be"
            " in between; if the host was reinstalled, remove the old key with:"
            f" ssh-keygen -R '{hop.known_as}' and trust it anew"
        )


def _log_in(transport: paramiko.Transport, hop: _Hop, deadline: Deadline) -> None:
    """Try our keys. Raises DeviceUnavailable naming what was tried."""
    tried: list[str] = []
    for name, key in _keys(hop, tried):
        transport.auth_timeout = max(0.1, deadline.left_s)
        tried.append(name)
        try:
            missing = transport.auth_publickey(hop.user, key)
        except paramiko.BadAuthenticationType as e:
            tried.append(f"the host takes only {', '.join(e.allowed_types)}")
            break
        except paramiko.AuthenticationException as e:
            if not transport.is_active() or deadline.over:
                raise EOFError(str(e)) from e
            continue
        if not missing:
            return
        tried.append(f"the host wants {', '.join(missing)} as well")
    raise DeviceUnavailable(
        f"{hop.host} accepts none of our keys for {hop.user} (tried: {'; '.join(tried) or 'there are none'});"
        f" install one with: ssh-copy-id -p {hop.port} {hop.user}@{hop.host}"
    )


def _keys(hop: _Hop, notes: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
    """Keys to offer: files of ssh_config or the usual ones, then the agent's, who also knows those with passphrases."""
    files = list(hop.identities)
    if not hop.identities_only and not files:
        files = [p for name in _KEY_NAMES if (p := Path.home() / ".ssh" / name).is_file()]
    for file in files:
        key = _key_of(file, notes)
        if key is not None:
            yield str(file), key
    if not hop.identities_only:
        with contextlib.closing(paramiko.Agent()) as agent:
            for key in agent.get_keys():
                yield f"agent {key.comment or key.get_name()}", key


def _key_of(file: Path, notes: list[str]) -> paramiko.PKey | None:
    try:
        return paramiko.PKey.from_path(file)
    except paramiko.PasswordRequiredException:
        notes.append(f"{file} needs its passphrase: ssh-add it")
    except (OSError, ValueError, TypeError, paramiko.SSHException) as e:
        notes.append(f"{file}: {e}")
    return None


def _mapped(e: BaseException, host: str, deadline: Deadline) -> DeviceLost | DeviceUnavailable:
    """Our words for why a connection did not come about."""
    if isinstance(e, socket.gaierror):
        return DeviceUnavailable(f"no host is called {host}: {e.strerror}")
    if isinstance(e, ConnectionRefusedError):
        return DeviceUnavailable(f"{host} refuses SSH connections; start its SSH server or correct the port")
    if isinstance(e, TimeoutError) or deadline.over:
        return DeviceUnavailable(
            f"{host} gave no SSH answer within {deadline.limit_s:g} s; is it on, and is it the port?"
        )
    if isinstance(e, paramiko.ChannelException):
        return DeviceUnavailable(f"the jump host cannot reach {host}: {e}")
    if "banner" in str(e):
        return DeviceUnavailable(f"what answers at {host} is no SSH server, or a frozen one: {e}")
    return DeviceLost(f"the connection to {host} broke while it was opened: {e or type(e).__name__}")
