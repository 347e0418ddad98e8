"""Android phones over adb: transport `adb`, through the adb server that owns the phone.

It never kills a server and never starts a second one: if nobody listens at a local address it starts one, elsewhere it
says what to do. Success needs the device's own word (exit packet, or a nonce where there is no `shell_v2`), because the
link may end at any moment without an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from farm.errors import (
    DeadlineExceeded,
    DeviceLost,
    DeviceUnavailable,
    InfraError,
    InvalidInput,
    NoSpace,
    TransferFailed,
)
from farm.transports import adb_wire
from farm.transports.adb_wire import AdbRefused, AdbSocket, Dial
from farm.transports.base import Addressed, Completed, Deadline, blocks, file_sha256, landing, plain_argv, tail_text
from farm.transports.far_shell import (
    KILL_LIMIT_S,
    Job,
    check_landed,
    is_full_text,
    land_argv,
    look_argv,
    part_of,
    sha256_seen,
    undead,
    was_killed,
)

DEFAULT_PORT = 5037
_MAX_COMMAND = 0xFFFF
"""A request's length is four hexadecimal digits."""
_PING_S = 6.0
"""A server that just started takes connections at once but says nothing for 3 s, while it looks for USB devices."""
_START_S = 20.0
_POLL_S = 0.1
_PASSING = ("offline", "connecting", "authorizing", "detached")
_CURES = {
    "unauthorized": "confirm the RSA dialog on the phone's screen (tick 'always allow'), then run again",
    "no permissions": "give this user the USB device (udev rules, group plugdev), then plug the phone in again",
    "recovery": "restart the phone into Android",
    "sideload": "restart the phone into Android",
    "rescue": "restart the phone into Android",
    "bootloader": "restart the phone into Android",
}


def open_transport(device: Addressed, dial: Dial | None = None) -> AdbTransport:
    """The link to a device of the inventory, by its ``serial`` and ``adb_server``; not connected yet.

    dial: the way to the server, where that is on a lab host.
    """
    return AdbTransport(
        device.address.get("serial"), adb_server=device.address.get("adb_server"), env=device.env, dial=dial
    )


class AdbTransport:
    """A phone. serial: as `adb devices` prints it, or None for the only one. adb_server: ``host:port`` of its server.

    env reaches every program.
    """

    kind = "adb"
    shares_filesystem = False

    def __init__(
        self,
        serial: str | None = None,
        *,
        adb_server: str | None = None,
        env: Mapping[str, str] | None = None,
        dial: Dial | None = None,
    ) -> None:
        self._dial = dial
        self.server = server_address(adb_server, os.environ)
        self.env = dict(env or {})
        self._asked = serial
        self.serial = serial or ""
        self._shell_v2: bool | None = None
        self._seen = False
        self._lock = threading.Lock()
        self._open: set[AdbSocket] = set()
        self._closed = threading.Event()
        self._closed.set()
        self._lost: dict[str, tuple[Job, int | None]] = {}

    # --- link -----------------------------------------------------------------------------------------------------

    def connect(self, timeout: float) -> None:
        """Wait until the phone is ready; then end whatever an earlier, broken link left running there.

        Raises DeviceUnavailable with what a person has to do, or DeadlineExceeded.
        """
        deadline = Deadline(timeout)
        self._closed.clear()
        self._shell_v2 = None
        try:
            self._server_answers(deadline)
            self._wait_ready(deadline)
            features = self._ask(f"host-serial:{self.serial}:features", deadline)
            self._shell_v2 = "shell_v2" in features.split(",")
        except AdbRefused as e:
            raise self._refused(e) from e
        for job, group in list(self._lost.values()):
            self._kill(job, group, ("what an earlier connection started",), stale=True)

    def close(self) -> None:
        """End the link now; who waits gets DeviceLost. `connect` kills what is left over there."""
        self._closed.set()
        with self._lock:
            for one in self._open:
                one.cut()

    def _server_answers(self, deadline: Deadline) -> None:
        ping = Deadline(max(0.05, min(_PING_S, deadline.left_s)))
        try:
            self._ask("host:version", ping)
        except ConnectionRefusedError as e:
            if self._dial is not None:
                raise DeviceUnavailable(f"no adb server can be reached at {self._where}: {e}") from e
            start_server(self.server, deadline)
            self._ask("host:version", Deadline(_PING_S))
        except DeadlineExceeded as e:
            raise DeviceUnavailable(
                f"the adb server at {self._where} takes connections but does not answer; it hangs and its owner has to"
                " restart it"
            ) from e
        except OSError as e:
            raise DeviceUnavailable(f"no adb server can be reached at {self._where}: {e}") from e

    def _wait_ready(self, deadline: Deadline) -> None:
        """Poll the phone's state; nudge a TCP phone that is missing or offline, and at last any that stays offline."""
        state = said = ""
        polls = nudges = 0
        while not deadline.over:
            state = self._state(deadline)
            polls += 1
            if state == "device":
                self._seen = True
                return
            # A phone on a cable that was here a moment ago may be restarting; one never seen is not waited for.
            waits = state in _PASSING or (state == "" and (self._is_tcp or self._seen))
            if not waits:
                raise DeviceUnavailable(self._state_words(state))
            if self._is_tcp and (state == "" or (state == "offline" and not nudges and polls > 1)):
                if state:
                    # The server keeps a dead TCP phone as "offline" and calls it "already connected".
                    nudges += 1
                    self._ask(f"host:disconnect:{self.serial}", deadline)
                said = self._ask(f"host:connect:{self.serial}", deadline)
            elif state == "offline" and not nudges and deadline.spent_s > deadline.limit_s / 3:
                nudges += 1
                self._ask(f"host-serial:{self.serial}:reconnect", deadline)
            if self._closed.wait(_POLL_S):
                raise DeviceLost(f"the link to {self._who} was closed while it was opened")
        raise DeviceUnavailable(self._state_words(state) + (f"; adb says: {said.strip()}" if said else ""))

    def _state(self, deadline: Deadline) -> str:
        """The state of our phone, empty if the server does not know it; with no serial asked for, of the only phone."""
        rows = parse_devices(self._ask("host:devices", deadline))
        if self._asked is None:
            if len(rows) != 1:
                names = ", ".join(serial for serial, _ in rows) or "none"
                raise DeviceUnavailable(f"name a serial: the adb server at {self._where} has not one phone but {names}")
            self.serial = rows[0][0]
        mine = [state for serial, state in rows if serial == self.serial]
        if len(mine) > 1:
            raise DeviceUnavailable(
                f"{len(mine)} phones at {self._where} have the serial {self.serial!r}; unplug one, or use it over TCP"
            )
        return mine[0] if mine else ""

    def _state_words(self, state: str) -> str:
        if not state:
            return (
                f"the adb server at {self._where} sees no phone {self.serial!r}; check cable, power and USB debugging"
            )
        cure = next((cure for word, cure in _CURES.items() if state.startswith(word)), "plug it in again or restart it")
        return f"phone {self.serial!r} is {state}: {cure}"

    @property
    def _is_tcp(self) -> bool:
        name, _, port = self.serial.rpartition(":")
        return bool(name) and port.isdigit()

    @property
    def _where(self) -> str:
        return f"{self.server[0]}:{self.server[1]}"

    @property
    def _who(self) -> str:
        return f"phone {self.serial!r}" if self.serial else f"the adb server at {self._where}"

    def _refused(self, e: AdbRefused) -> InfraError:
        """Our words for the server's FAIL."""
        said = str(e)
        if "unauthorized" in said:
            return DeviceUnavailable(self._state_words("unauthorized"))
        if "authorizing" in said or "connecting" in said:
            return DeviceUnavailable(f"phone {self.serial!r} is not ready: {said}")
        return DeviceLost(f"{self._who} is gone: {said or 'adb gave no reason'}")

    @contextmanager
    def _socket(self, deadline: Deadline) -> Iterator[AdbSocket]:
        """A connection to the server that `close` can cut."""
        with AdbSocket(self.server, deadline, self._who, self._dial) as one:
            with self._lock:
                self._open.add(one)
            try:
                if self._closed.is_set():
                    raise DeviceLost(f"the link to {self._who} is closed; connect again first")
                yield one
            finally:
                with self._lock:
                    self._open.discard(one)

    def _ask(self, service: str, deadline: Deadline) -> str:
        with self._socket(deadline) as one:
            one.request(service)
            return one.text()

    @contextmanager
    def _service(self, service: str, deadline: Deadline) -> Iterator[AdbSocket]:
        """A stream to a service of the phone."""
        if self._shell_v2 is None or self._closed.is_set():
            raise DeviceLost(f"the link to {self._who} is closed; connect again first")
        try:
            with self._socket(deadline) as one:
                one.request(f"host:transport:{self.serial}")
                one.request(service)
                yield one
        except AdbRefused as e:
            raise self._refused(e) from e
        except OSError as e:
            raise DeviceLost(f"the adb server at {self._where} is gone: {e}") from e

    # --- programs -------------------------------------------------------------------------------------------------

    def run(
        self, argv: Sequence[str], timeout: float, *, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> Completed:
        """Run one program to its end (see Transport.run). Without `shell_v2` stderr comes merged into stdout."""
        return self._run(plain_argv(argv), Deadline(timeout), {**self.env, **(env or {})}, stdin)

    def _run(self, argv: tuple[str, ...], deadline: Deadline, env: Mapping[str, str], stdin: bytes = b"") -> Completed:
        job = Job.make(argv, env, merged=not self._shell_v2, stdin_bytes=len(stdin))
        heard = _Heard(job)
        try:
            self._talk(job, heard, deadline, stdin)
        except DeadlineExceeded as e:
            if job.nonce in self._lost:
                self._kill(job, heard.group, argv)
            raise DeadlineExceeded(
                f"{argv[0]} on {self._who} did not end within {deadline.limit_s:g} s; it and its children were killed",
                argv=argv,
                output=heard.tail,
            ) from e
        except DeviceLost as e:
            self._remember(job, heard)
            raise DeviceLost(str(e), argv=argv, output=heard.tail) from e
        done = heard.completed(deadline, packets=bool(self._shell_v2))
        if done is None:
            self._remember(job, heard)
            raise DeviceLost(
                f"{self._who} ended the link before the end of {argv[0]} was seen", argv=argv, output=heard.tail
            )
        self._lost.pop(job.nonce, None)
        return done

    def _talk(self, job: Job, heard: _Heard, deadline: Deadline, stdin: bytes) -> None:
        service = ("shell,v2,raw:" if self._shell_v2 else "exec:") + job.script
        if len(service.encode()) > _MAX_COMMAND:
            raise InvalidInput("the command is longer than adb can carry (64 KiB); pass the long part in a file")
        with self._service(service, deadline) as one:
            self._lost[job.nonce] = (job, None)
            one.talk(stdin, packets=bool(self._shell_v2), take=heard.take)

    def _remember(self, job: Job, heard: _Heard) -> None:
        if job.nonce in self._lost:
            self._lost[job.nonce] = (job, heard.group)

    def _kill(self, job: Job, group: int | None, argv: tuple[str, ...], *, stale: bool = False) -> None:
        """Kill a job over another stream and see that it is dead. Raises DeviceLost or DeviceUnavailable."""
        self._lost[job.nonce] = (job, group)
        killer = Job.make(("sh", "-c", job.killer(group, stale=stale)), {}, merged=not self._shell_v2)
        heard = _Heard(killer)
        deadline = Deadline(KILL_LIMIT_S)
        try:
            self._talk(killer, heard, deadline, b"")
        except DeadlineExceeded as e:
            raise undead(argv, f"{self._who} no longer answers") from e
        finally:
            self._lost.pop(killer.nonce, None)
        done = heard.completed(deadline, packets=bool(self._shell_v2))
        if done is None:
            raise DeviceLost(f"{self._who} went away while {argv[0]} was being killed; connecting again kills it")
        if not was_killed(done):
            raise undead(argv, heard.tail.strip()[-200:])
        del self._lost[job.nonce]

    # --- files ----------------------------------------------------------------------------------------------------

    def push(self, local: Path, remote: str, timeout: float, *, mode: int = 0o644) -> None:
        """Copy a file there (see Transport.push)."""
        deadline = Deadline(timeout)
        sha256 = file_sha256(local)
        part = part_of(remote)
        try:
            try:
                with self._service("sync:", deadline) as one:
                    try:
                        one.sync_send(part, blocks(local), mode, int(local.stat().st_mtime))
                    except AdbRefused as e:
                        raise self._not_sent(e, remote) from e
                check_landed(self._run(land_argv(part, remote, sha256, mode), deadline, {}), remote, sha256)
            except DeadlineExceeded as e:
                raise DeadlineExceeded(
                    f"copying {local} to {remote} on {self._who} took longer than {deadline.limit_s:g} s"
                ) from e
        except InfraError:
            self._discard(part)
            raise

    def _not_sent(self, e: AdbRefused, remote: str) -> NoSpace | TransferFailed:
        if is_full_text(str(e)):
            return NoSpace(f"no space left on {self._who} for {remote}; free some space there and run again")
        return TransferFailed(f"{remote} did not arrive on {self._who}: {e}", output=str(e))

    def _discard(self, part: str) -> None:
        """Remove what a failed push left, if the phone still answers; a leftover is never used under any name."""
        try:
            self._run(("rm", "-f", part), Deadline(_PING_S), {})
        except InfraError:
            pass

    def pull(self, remote: str, local: Path, timeout: float, *, sha256: str | None = None) -> None:
        """Copy a file here (see Transport.pull). Without `sha256` the phone's own is asked for and compared."""
        deadline = Deadline(timeout)
        wanted = sha256_seen(self._run(look_argv(remote, want_hash=sha256 is None), deadline, {}), remote)
        with landing(local, sha256=sha256 or wanted) as write, self._service("sync:", deadline) as one:
            try:
                one.sync_receive(remote, write)
            except AdbRefused as e:
                raise TransferFailed(f"cannot pull {remote} from {self._who}: {e}") from e


class _Heard:
    """What a program said, and whether its end was seen."""

    def __init__(self, job: Job) -> None:
        self.job, self.out, self.err = job, bytearray(), bytearray()
        self.status: int | None = None

    def take(self, kind: int, data: bytes) -> None:
        if kind == adb_wire.STDOUT:
            self.out += data
        elif kind == adb_wire.STDERR:
            self.err += data
        elif kind == adb_wire.EXIT and data:
            self.status = data[0]

    @property
    def group(self) -> int | None:
        return self.job.group(self.out, self.err)

    @property
    def tail(self) -> str:
        return tail_text(self.job.strip(self.out), self.job.strip(self.err))

    def completed(self, deadline: Deadline, *, packets: bool) -> Completed | None:
        """None if the link ended without the device's word on the program's end."""
        status, out = (self.status, self.job.strip(self.out)) if packets else self.job.status_of(self.out)
        if status is None:
            return None
        return Completed(exit_status=status, stdout=out, stderr=self.job.strip(self.err), wall_s=deadline.spent_s)


def parse_devices(text: str) -> list[tuple[str, str]]:
    """Rows of `host:devices` as (serial, state), parted at the last tab: serials may hold blanks, states words."""
    rows = [line.rpartition("\t") for line in text.splitlines()]
    return [(serial, state.strip()) for serial, tab, state in rows if tab and serial]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A row of an adb server's list. cure: what a person has to do, empty when it is ready. about: model, usb, …"""

    serial: str
    state: str
    cure: str
    about: Mapping[str, str]


def list_phones(server: tuple[str, int], deadline: Deadline, dial: Dial | None = None) -> list[Listed]:
    """Ask an adb server what it sees; starts none. Raises OSError if nobody listens, else InfraError."""
    who = f"the adb server at {server[0]}:{server[1]}"
    texts = []
    for service in ("host:devices", "host:devices-l"):
        with AdbSocket(server, deadline, who, dial) as one:
            try:
                one.request(service)
                texts.append(one.text())
            except AdbRefused as e:
                raise DeviceUnavailable(f"{who} does not tell its devices: {e}") from e
    rows = parse_devices(texts[0])
    found = []
    for serial, state in rows:
        cure = next((cure for word, cure in _CURES.items() if state.startswith(word)), "")
        if not cure and state != "device":
            cure = "plug it in again or restart it"
        if [one for one, _ in rows].count(serial) > 1:
            state, cure = "ambiguous", "several phones have this serial; unplug one, or use it over TCP"
        line = next((one for one in texts[1].splitlines() if one.startswith(f"{serial} ")), "")
        pairs = (word.partition(":") for word in line[len(serial) :].split())
        found.append(Listed(serial=serial, state=state, cure=cure, about={k: v for k, _, v in pairs if v}))
    return found


def server_address(given: str | None, environ: Mapping[str, str]) -> tuple[str, int]:
    """``host:port`` of the adb server; without one adb's own variables and default. Raises InvalidInput."""
    if not given:
        return environ.get("ANDROID_ADB_SERVER_ADDRESS", "127.0.0.1"), int(
            environ.get("ANDROID_ADB_SERVER_PORT", DEFAULT_PORT)
        )
    host, _, port = given.removeprefix("tcp:").rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidInput(f"adb_server {given!r} is no address; write host:port, e.g. 127.0.0.1:5037")
    return host.strip("[]") or "127.0.0.1", int(port)


def start_server(server: tuple[str, int], deadline: Deadline) -> None:
    """Start an adb server where none listens. Only on this machine. Raises DeviceUnavailable."""
    host, port = server
    if host not in ("127.0.0.1", "localhost", "::1"):
        raise DeviceUnavailable(
            f"no adb server listens at {host}:{port}; start one there: adb -a -P {port} nodaemon server"
        )
    # The user's own adb first: their next `adb devices` would kill a server of another version, and our cells with it.
    adb = shutil.which("adb") or _bundled_adb()
    try:
        done = subprocess.run(
            [adb, "-P", str(port), "start-server"],
            stdin=subprocess.DEVNULL,
            # The daemon it leaves behind inherits these: pipes would never end.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=max(0.1, min(_START_S, deadline.left_s)),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise DeviceUnavailable(f"cannot start an adb server at {host}:{port}: {e}") from e
    if done.returncode != 0:
        raise DeviceUnavailable(f"cannot start an adb server at {host}:{port}: {adb} ended with {done.returncode}")


def _bundled_adb() -> str:
    import adbutils  # slow to import, and needed here alone

    path: str = adbutils.adb_path()
    return path
