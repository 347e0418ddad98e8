"""A real sshd on an ephemeral loopback port, with keys and files of its own: nothing of this machine's is used."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.ports import free_port, wait_until_it_listens


def sshd_program() -> str | None:
    """Path of sshd, which must be called by its full name; None where it is not installed."""
    return shutil.which("sshd") or next(
        (p for p in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if Path(p).exists()), None
    )


def make_key(path: Path, kind: str = "ed25519") -> Path:
    """Make a key pair without passphrase."""
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "farm-test", "-f", str(path)], check=True)
    return path


@dataclass(kw_only=True)
class Sshd:
    """One sshd. `config` is the ssh_config that reaches it as host `lab`; `known_hosts` knows its key."""

    folder: Path
    extra: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    def start(self) -> None:
        """Start it, on the same port as before if it ran before, and wait until it listens."""
        program = sshd_program()
        assert program, "openssh-server is not installed"
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.host_key.exists():
            make_key(self.host_key)
            make_key(self.folder / "user_key")
            self.trust()
        keys = self.folder / "authorized_keys"
        keys.write_text((self.folder / "user_key.pub").read_text())
        keys.chmod(0o600)
        (self.folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {self.host_key}\nPidFile none\n"
            f"AuthorizedKeysFile {keys}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nAcceptEnv none\nUseDNS no\n"
            + "".join(f"{line}\n" for line in self.extra)
        )
        self.config.write_text(
            f"Host lab\n HostName 127.0.0.1\n Port {self.port}\n"
            f" IdentityFile {self.folder}/user_key\n IdentitiesOnly yes\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on its empty folder when it is root
        with (self.folder / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until_it_listens(self.port, self.process, self.folder / "sshd.log")

    def trust(self) -> None:
        """Write the present host key into known_hosts."""
        kind, key = self.host_key.with_suffix(".pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")

    def sessions(self) -> list[int]:
        """Process ids of the connections that are open now."""
        assert self.process is not None
        return _descendants(self.process.pid)

    def stop(self) -> None:
        """End it and every connection it serves."""
        if self.process is None:
            return
        for pid in [*self.sessions(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


def _descendants(pid: int) -> list[int]:
    """Children of `pid` and theirs that are sshd too; the programs they run are left out."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            try:
                name = Path(f"/proc/{child}/comm").read_text().strip()
            except OSError:
                continue
            if name.startswith("sshd"):
                found.append(child)
                waiting.append(child)
    return found
