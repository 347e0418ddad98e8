"""An emulated phone: the device side of the adb protocol on TCP, for a real adb server to connect to. Loopback only.

Speaks CNXN/AUTH/OPEN/OKAY/WRTE/CLSE, shell (v1, v2), exec, sync (STAT, LIST, SEND, RECV), tcp:, reboot:. Each phone has
a folder; its data/ appears as /data and its bin/ as /system/bin, in a mount namespace of its own as root, else by
rewriting paths in commands. Run as a program: prints one JSON line with the ports, then takes JSON lines on stdin
({"phone": 0, "faults": {...}}, {"phone": 0, "do": "cut"}) and answers each with "ok"; ends when stdin does.

Faults (FAULTS): what real phones were seen to do, switched on by name.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import os
import shlex
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

CNXN, AUTH, OPEN, OKAY, WRTE, CLSE = (
    int.from_bytes(w, "little") for w in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"WRTE", b"CLSE")
)
VERSION, MAXDATA = 0x01000001, 1 << 20
FEATURES = "cmd,stat_v2,ls_v2,fixed_push_mkdir,fixed_push_symlink_timestamp"
HEADER = struct.Struct("<6I")
BLOCK = 64 * 1024

FAULTS = {
    "legacy": "no shell_v2: exit codes and stderr are lost",
    "mute_shell": "shell answers OKAY, then nothing",
    "mute_sync": "sync answers OKAY, then nothing",
    "cut_shell": "the connection is reset after the first output of a shell",
    "clse_shell": "a shell ends after its first output, without an exit packet",
    "trunc_push": "a push is acknowledged but only its first 64 KiB are kept",
    "corrupt_push": "a push is acknowledged but one bit of it is flipped",
    "cut_push": "the connection is reset after 64 KiB of a push, which stay under the name",
    "enospc_after": "a push fails with 'No space left on device' after so many bytes",
    "corrupt_pull": "one bit of a pull is flipped",
    "cut_pull": "the connection is reset in the middle of a pull",
    "delay_ms": "each packet takes so long",
}

DEFAULT_PROPS = {
    "ro.product.name": "labphone",
    "ro.product.model": "LabPhone",
    "ro.product.device": "lab",
    "ro.product.manufacturer": "Farm",
    "ro.product.cpu.abi": "arm64-v8a",
    "ro.build.version.sdk": "34",
    "ro.build.version.release": "14",
    "ro.build.fingerprint": "farm/labphone/lab:14/LAB/1:user/test-keys",
    "sys.boot_completed": "1",
}
BATTERY = "Current Battery Service state:\n  AC powered: true\n  level: 87\n  scale: 100\n  temperature: 281\n"


class Cut(ConnectionError):
    """A fault wants the TCP connection reset."""


class Phone:
    """State of one phone. env: added to its programs, e.g. VK_ICD_FILENAMES to give it a GPU."""

    def __init__(self, root: Path, *, port: int = 0, auth: str = "none", rewrite: bool = False) -> None:
        self.root, self.port, self.auth = root, port, auth
        self.data, self.bin = root / "data", root / "bin"
        (self.data / "local/tmp").mkdir(parents=True, exist_ok=True)
        self.bin.mkdir(parents=True, exist_ok=True)
        self.props = dict(DEFAULT_PROPS)
        self.env: dict[str, str] = {}
        self.gles = ""
        self.authorized = auth == "none"
        self.faults: dict[str, Any] = {}
        self.rewrite = rewrite or os.geteuid() != 0
        self.holder: subprocess.Popen[str] | None = None
        self.server: asyncio.Server | None = None
        self.connections: set[Connection] = set()
        self.boot_s = 0.5
        self.tasks: set[asyncio.Task[None]] = set()

    def write_bin(self) -> None:
        """Make the phone's own programs: getprop and dumpsys answer from what this object holds."""

        def put(name: str, text: str) -> None:
            (self.bin / name).write_text(f"#!/bin/sh\n{text}")
            (self.bin / name).chmod(0o755)

        props = {**self.props, "ro.serialno": f"LAB{self.port}"}
        one = "".join(f"{shlex.quote(k)}) echo {shlex.quote(v)};;\n" for k, v in props.items())
        every = "".join(f"echo {shlex.quote(f'[{k}]: [{v}]')}\n" for k, v in props.items())
        put("getprop", f'if [ $# = 0 ]; then\n{every}exit 0; fi\ncase "$1" in\n{one}*) echo "$2";;\nesac\n')
        gles = f"echo {shlex.quote(f'GLES: {self.gles}')}" if self.gles else ":"
        put(
            "dumpsys",
            f'case "$1" in battery) printf %s {shlex.quote(BATTERY)};; thermalservice) echo "Thermal Status: 0";;\n'
            f'SurfaceFlinger) {gles};; *) echo "Can\'t find service: $1";; esac\n',
        )

    async def start(self) -> None:
        """Listen, on the same port as before if it listened before."""
        self._mount()
        self.server = await asyncio.start_server(self._client, "127.0.0.1", self.port, limit=4 << 20)
        self.port = self.server.sockets[0].getsockname()[1]
        self.write_bin()

    def _mount(self) -> None:
        """Build the phone's own view of the file system and hold it open in a process of its own."""
        if self.rewrite or self.holder:
            return
        ns = self.root / "ns"
        ns.mkdir(exist_ok=True)
        script = f"""set -e
mount -t tmpfs tmpfs {ns}
for d in /*; do b=${{d#/}}
  if [ -L "$d" ]; then ln -s "$(readlink "$d")" {ns}/$b
  elif [ -d "$d" ] && [ "$b" != data ] && [ "$b" != system ]; then mkdir {ns}/$b; mount --rbind "$d" {ns}/$b; fi; done
mkdir -p {ns}/data {ns}/system/bin
mount --rbind {self.data} {ns}/data; mount --bind {self.bin} {ns}/system/bin
echo ready; exec sleep 100000"""
        argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
        self.holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout
        if self.holder.stdout.readline().strip() != "ready":
            self.end_holder()
            self.rewrite = True

    def end_holder(self) -> None:
        if self.holder:
            self.holder.kill()
            self.holder.communicate()
            self.holder = None

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self.server:
            self.server.close()
        self.cut()

    def cut(self) -> None:
        """Reset every connection, as an unplugged cable does."""
        for one in list(self.connections):
            one.writer.transport.abort()

    def reboot(self) -> None:
        async def again() -> None:
            await self.stop()
            await asyncio.sleep(self.boot_s)
            await self.start()

        task = asyncio.ensure_future(again())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        one = Connection(self, reader, writer)
        self.connections.add(one)
        try:
            await one.serve()
        finally:
            self.connections.discard(one)

    def host_path(self, path: str) -> Path:
        """Where a path of the phone lies on this machine. Raises FileNotFoundError outside of what it has."""
        path = os.path.normpath("/" + path.lstrip("/"))
        for mine, here in (("/data", self.data), ("/system/bin", self.bin)):
            if path == mine or path.startswith(mine + "/"):
                return Path(f"{here}{path[len(mine) :]}")
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def command(self, text: str) -> tuple[list[str], dict[str, str], str]:
        """argv, environment and folder that make a shell command see the phone."""
        env = {
            "PATH": "/system/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/data/local/tmp",
            "TMPDIR": "/data/local/tmp",
            **self.env,
        }
        if not self.rewrite:
            assert self.holder
            root = str(self.root / "ns")
            enter = ["nsenter", "-t", str(self.holder.pid), "-m", "chroot", root, "/bin/sh", "-c", text]
            return enter, env, "/"
        env |= {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": f"{self.data}/local/tmp",
            "TMPDIR": f"{self.data}/local/tmp",
        }
        text = text.replace("/data/", f"{self.data}/").replace("/system/bin/", f"{self.bin}/")
        return ["/bin/sh", "-c", text], env, str(self.root)


class Stream:
    """One adb stream. Without delayed acknowledgements only one WRTE may be on its way: `send` waits for OKAY."""

    def __init__(self, connection: Connection, local: int, remote: int) -> None:
        self.connection, self.local, self.remote = connection, local, remote
        self.inbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.ready = asyncio.Event()
        self.ready.set()
        self.closed = False
        self.buffer = bytearray()
        self.on_close: list[Callable[[], None]] = []

    async def send(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        for at in range(0, len(view), self.connection.maxdata):
            await self.ready.wait()
            if self.closed:
                raise ConnectionError("stream closed")
            self.ready.clear()
            piece = bytes(view[at : at + self.connection.maxdata])
            await self.connection.write(WRTE, self.local, self.remote, piece)

    async def receive(self) -> bytes:
        """Next piece, acknowledged; empty at the end."""
        if self.closed and self.inbox.empty():
            return b""
        data = await self.inbox.get()
        if data:
            await self.connection.write(OKAY, self.local, self.remote)
        return data

    async def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = await self.receive()
            if not data:
                raise EOFError
            self.buffer += data
        got = bytes(self.buffer[:count])
        del self.buffer[:count]
        return got

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            await self.connection.write(CLSE, self.local, self.remote)
        self.connection.streams.pop(self.local, None)

    def peer_closed(self) -> None:
        self.closed = True
        self.ready.set()
        self.inbox.put_nowait(b"")
        for call in self.on_close:
            call()


class Connection:
    """One connection of an adb server."""

    def __init__(self, phone: Phone, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.phone, self.reader, self.writer = phone, reader, writer
        self.streams: dict[int, Stream] = {}
        self.next = 1
        self.maxdata = MAXDATA
        self.tasks: set[asyncio.Task[None]] = set()

    async def write(self, command: int, a0: int, a1: int, data: bytes = b"") -> None:
        self.writer.write(HEADER.pack(command, a0, a1, len(data), 0, command ^ 0xFFFFFFFF) + data)
        await self.writer.drain()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Cut:
                self.writer.transport.abort()
            except (EOFError, OSError):
                pass

        task = asyncio.ensure_future(guarded())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _banner(self) -> bytes:
        names = ("ro.product.name", "ro.product.model", "ro.product.device")
        props = "".join(f"{k}={self.phone.props[k]};" for k in names)
        features = FEATURES if self.phone.faults.get("legacy") else f"shell_v2,{FEATURES}"
        return f"device::{props}features={features}".encode()

    async def serve(self) -> None:
        try:
            while True:
                command, a0, a1, size, _, magic = HEADER.unpack(await self.reader.readexactly(24))
                if magic != command ^ 0xFFFFFFFF:
                    raise ConnectionError("bad magic")
                data = await self.reader.readexactly(size) if size else b""
                if delay := self.phone.faults.get("delay_ms"):
                    await asyncio.sleep(delay / 1000)
                await self._handle(command, a0, a1, data)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            for stream in list(self.streams.values()):
                stream.peer_closed()
            for task in list(self.tasks):
                task.cancel()
            self.writer.close()

    async def _handle(self, command: int, a0: int, a1: int, data: bytes) -> None:
        phone = self.phone
        stream = self.streams.get(a1)
        if command == CNXN:
            self.maxdata = min(a1, MAXDATA)
            if phone.authorized:
                await self.write(CNXN, VERSION, MAXDATA, self._banner())
            else:
                await self.write(AUTH, 1, 0, os.urandom(20))
        elif command == AUTH:
            # 2: a signature by a key we do not know. 3: the key itself, for which a phone asks its user.
            if a0 == 3 and phone.auth == "accept":
                phone.authorized = True
                await self.write(CNXN, VERSION, MAXDATA, self._banner())
            elif a0 == 2:
                await self.write(AUTH, 1, 0, os.urandom(20))
        elif command == OPEN:
            made = Stream(self, self.next, a0)
            self.next += 1
            self.streams[made.local] = made
            self._spawn(self._service(made, data.rstrip(b"\0").decode()))
        elif command == OKAY and stream:
            stream.remote = a0
            stream.ready.set()
        elif command == WRTE:
            if stream and not stream.closed:
                stream.inbox.put_nowait(data)
            else:
                await self.write(CLSE, a1, a0)
        elif command == CLSE and self.streams.pop(a1, None) and stream and not stream.closed:
            stream.peer_closed()
            await self.write(CLSE, a1, a0)

    async def _service(self, stream: Stream, name: str) -> None:
        kind, _, argument = name.partition(":")
        options = kind.split(",")
        if options[0] not in ("shell", "exec", "sync", "tcp", "reboot"):
            self.streams.pop(stream.local, None)
            await self.write(CLSE, 0, stream.remote)
            return
        if kind == "tcp":
            await self._forward(stream, argument)
            return
        await self.write(OKAY, stream.local, stream.remote)
        if options[0] in ("shell", "exec"):
            await self._shell(stream, argument, packets="v2" in options)
        elif kind == "sync":
            await Sync(stream, self.phone).serve()
        else:
            asyncio.get_running_loop().call_soon(self.phone.reboot)
        await stream.close()

    async def _shell(self, stream: Stream, command: str, *, packets: bool) -> None:
        faults = self.phone.faults
        if faults.get("mute_shell"):
            await asyncio.sleep(3600)
        argv, env, folder = self.phone.command(command)
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if packets else subprocess.STDOUT,
            env=env,
            cwd=folder,
            start_new_session=True,
            limit=1 << 20,
        )
        assert process.stdin
        assert process.stdout

        def hang_up() -> None:
            # What adbd does when the host goes away: to the shell alone.
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGHUP)

        stream.on_close.append(hang_up)
        if stream.closed:
            hang_up()
        lock = asyncio.Lock()

        async def pump(number: int, reader: asyncio.StreamReader) -> None:
            while data := await reader.read(BLOCK):
                head = struct.pack("<BI", number, len(data)) if packets else b""
                async with lock:
                    await stream.send(head + data)
                # The first line is the wrapper's own; a fault comes once the program itself has spoken.
                if faults.get("cut_shell") and b"FIRST" in data:
                    raise Cut("fault")
                if faults.get("clse_shell") and b"FIRST" in data:
                    raise EOFError

        feeder = asyncio.ensure_future(self._feed(stream, process.stdin, packets=packets))
        outs = [pump(1, process.stdout), *([pump(2, process.stderr)] if packets and process.stderr else [])]
        try:
            await asyncio.gather(*outs)
            code = await process.wait()
            if packets:
                await stream.send(struct.pack("<BIB", 3, 1, code if code >= 0 else 128 - code))
        except Cut:
            hang_up()
            raise
        except EOFError:
            hang_up()
        finally:
            feeder.cancel()

    async def _feed(self, stream: Stream, stdin: asyncio.StreamWriter, *, packets: bool) -> None:
        buffer = bytearray()
        while data := await stream.receive():
            try:
                if not packets:
                    stdin.write(data)
                    await stdin.drain()
                    continue
                buffer += data
                while len(buffer) >= 5:
                    kind, size = struct.unpack_from("<BI", buffer)
                    if len(buffer) < 5 + size:
                        break
                    body = bytes(buffer[5 : 5 + size])
                    del buffer[: 5 + size]
                    if kind == 0:
                        stdin.write(body)
                        await stdin.drain()
                    elif kind == 4:
                        stdin.close()
            except OSError:  # the program ended or closed its stdin
                pass

    async def _forward(self, stream: Stream, argument: str) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(argument.rpartition(":")[2]))
        except (OSError, ValueError):
            self.streams.pop(stream.local, None)
            await self.write(CLSE, 0, stream.remote)
            return
        await self.write(OKAY, stream.local, stream.remote)

        async def up() -> None:
            while data := await stream.receive():
                writer.write(data)
                await writer.drain()
            writer.close()

        task = asyncio.ensure_future(up())
        try:
            while data := await reader.read(BLOCK):
                await stream.send(data)
        finally:
            task.cancel()
            writer.close()
        await stream.close()


class Sync:
    """The file service."""

    def __init__(self, stream: Stream, phone: Phone) -> None:
        self.stream, self.phone = stream, phone

    async def serve(self) -> None:
        if self.phone.faults.get("mute_sync"):
            await asyncio.sleep(3600)
        while True:
            word, size = struct.unpack("<4sI", await self.stream.exactly(8))
            if word == b"QUIT":
                return
            path = (await self.stream.exactly(size)).decode()
            if word == b"STAT":
                await self.stream.send(b"STAT" + self._stat(path))
            elif word in (b"STA2", b"LST2"):
                await self.stream.send(word + self._stat2(path, follow=word == b"STA2"))
            elif word == b"LIST":
                await self._list(path)
            elif word == b"SEND":
                await self._take_file(path)
            elif word == b"RECV":
                await self._give_file(path)
            else:
                await self._fail(f"unknown command {word!r}")
                return

    async def _fail(self, message: str) -> None:
        text = message.encode()
        await self.stream.send(b"FAIL" + struct.pack("<I", len(text)) + text)

    def _stat(self, path: str) -> bytes:
        try:
            s = self.phone.host_path(path).lstat()
        except OSError:
            return bytes(12)
        return struct.pack("<3I", s.st_mode, s.st_size & 0xFFFFFFFF, int(s.st_mtime))

    def _stat2(self, path: str, *, follow: bool) -> bytes:
        try:
            s = os.stat(self.phone.host_path(path), follow_symlinks=follow)
        except OSError as e:
            return struct.pack("<I", e.errno or errno.ENOENT) + bytes(64)
        times = (int(s.st_atime), int(s.st_mtime), int(s.st_ctime))
        inode = (s.st_dev & (2**64 - 1), s.st_ino, s.st_mode, s.st_nlink, s.st_uid, s.st_gid, s.st_size)
        return struct.pack("<I2Q4IQ3q", 0, *inode, *times)

    async def _list(self, path: str) -> None:
        out = bytearray()
        with contextlib.suppress(OSError):
            for entry in sorted(self.phone.host_path(path).iterdir()):
                s, name = entry.lstat(), entry.name.encode()
                numbers = (s.st_mode, s.st_size & 0xFFFFFFFF, int(s.st_mtime), len(name))
                out += b"DENT" + struct.pack("<4I", *numbers) + name
        await self.stream.send(out + b"DONE" + bytes(16))

    async def _take_file(self, spec: str) -> None:
        faults = self.phone.faults
        path, _, mode = spec.rpartition(",")
        failure, file, done, target = "", None, 0, None
        try:
            target = self.phone.host_path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, "Is a directory")
            target.unlink(missing_ok=True)  # as adbd does, against ETXTBSY
            file = target.open("wb", 0)
        except OSError as e:
            failure = f"couldn't create file: {e.strerror}"
        try:
            while True:
                word, size = struct.unpack("<4sI", await self.stream.exactly(8))
                if word == b"DONE":
                    break
                if word != b"DATA":
                    raise ConnectionError("bad sync data")
                data = await self.stream.exactly(size)
                if failure or file is None or target is None:
                    continue
                limit = faults.get("enospc_after")
                if limit and done + size > limit:
                    failure = "write failed: No space left on device"
                    target.unlink()
                    continue
                if faults.get("corrupt_push") and not done:
                    data = bytes([data[0] ^ 1]) + data[1:]
                if not (faults.get("trunc_push") and done >= BLOCK):
                    try:
                        file.write(data)
                    except OSError as e:
                        failure = f"write failed: {e.strerror}"
                        target.unlink(missing_ok=True)
                        continue
                done += size
                if faults.get("cut_push") and done >= BLOCK:
                    raise Cut("fault")
        finally:
            if file:
                file.close()
        if failure or target is None:
            await self._fail(failure)
            return
        target.chmod(stat.S_IMODE(int(mode or "420")) & 0o777)
        os.utime(target, (size, size))
        await self.stream.send(b"OKAY" + bytes(4))

    async def _give_file(self, path: str) -> None:
        faults, sent = self.phone.faults, 0
        try:
            file = self.phone.host_path(path).open("rb", 0)
        except OSError as e:
            await self._fail(f"open failed: {e.strerror}")
            return
        with file:
            while data := file.read(BLOCK):
                if faults.get("corrupt_pull") and not sent:
                    data = bytes([data[0] ^ 1]) + data[1:]
                await self.stream.send(b"DATA" + struct.pack("<I", len(data)) + data)
                sent += len(data)
                if faults.get("cut_pull"):
                    raise Cut("fault")
        await self.stream.send(b"DONE" + bytes(4))


async def _control(phones: list[Phone]) -> None:
    """Obey JSON lines on stdin until it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        order = json.loads(line)
        phone = phones[order["phone"]]
        if "faults" in order:
            phone.faults = order["faults"]
        for key in ("props", "env"):
            getattr(phone, key).update(order.get(key, {}))
        for key in ("gles", "boot_s"):
            setattr(phone, key, order.get(key, getattr(phone, key)))
        phone.write_bin()
        if order.get("do") == "cut":
            phone.cut()
        elif order.get("do") == "off":
            await phone.stop()
        elif order.get("do") == "on":
            await phone.start()
        print("ok", flush=True)


async def _main(options: argparse.Namespace) -> None:
    signal.signal(signal.SIGHUP, lambda *_: None)  # a handler, not SIG_IGN: children start with the default then
    phones = [
        Phone(Path(options.root).resolve() / f"phone{n}", auth=options.auth, rewrite=options.rewrite)
        for n in range(options.phones)
    ]
    try:
        for phone in phones:
            await phone.start()
        print(json.dumps([{"port": p.port, "root": str(p.root), "rewrite": p.rewrite} for p in phones]), flush=True)
        await _control(phones)
    finally:
        for phone in phones:
            await phone.stop()
            phone.end_holder()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="emulated phones for adb, on 127.0.0.1")
    parser.add_argument("--root", required=True)
    parser.add_argument("--phones", type=int, default=1)
    parser.add_argument("--auth", choices=["none", "accept", "refuse"], default="none")
    parser.add_argument("--rewrite", action="store_true", help="rewrite paths even as root")
    asyncio.run(_main(parser.parse_args()))
