"""A real mosquitto on an ephemeral loopback port, with password and, where wanted, TLS."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from farm.events import Broker
from tests.lab.ports import free_port, wait_until_it_listens

USER, PASSWORD = "farm", "for-the-tests-only"


def mosquitto_program() -> str | None:
    """Path of mosquitto; Debian keeps it off the PATH of users."""
    return shutil.which("mosquitto") or next((p for p in ("/usr/sbin/mosquitto",) if Path(p).exists()), None)


@dataclass(kw_only=True)
class Mosquitto:
    """One broker. It can be killed, started again on the same port, and frozen."""

    folder: Path
    tls: bool = False
    extra: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def start(self) -> None:
        program = mosquitto_program()
        assert program, "mosquitto is not installed"
        self.folder.mkdir(parents=True, exist_ok=True)
        passwords = self.folder / "passwords"
        if not passwords.exists():
            subprocess.run(
                ["mosquitto_passwd", "-b", "-c", str(passwords), USER, PASSWORD], check=True, capture_output=True
            )
            passwords.chmod(0o644)  # mosquitto leaves root behind and must still read it
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous false", f"password_file {passwords}"]
        if self.tls:
            self._make_certificate()
            lines += [f"certfile {self.folder}/server.pem", f"keyfile {self.folder}/server.key", "tls_version tlsv1.2"]
        if os.geteuid() == 0:
            lines.insert(0, "user root")  # or it cannot read a folder that only its owner may enter
        (self.folder / "mosquitto.conf").write_text("\n".join([*lines, *self.extra]) + "\n")
        with (self.folder / "mosquitto.log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, "-c", str(self.folder / "mosquitto.conf")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until_it_listens(self.port, self.process, self.folder / "mosquitto.log")

    def address(self, *, password: str = PASSWORD, prefix: str = "farm") -> Broker:
        """How farm reaches it."""
        import ssl

        from farm.events.link import _Secret

        return Broker(
            host="localhost" if self.tls else "127.0.0.1",
            port=self.port,
            prefix=prefix,
            username=USER,
            password=_Secret(password),
            tls=ssl.create_default_context(cafile=self.ca) if self.tls else None,
        )

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _make_certificate(self) -> None:
        if self.ca.exists():
            return
        for argv in (
            ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
             "-subj", "/CN=farm test CA", "-keyout", "ca.key", "-out", "ca.pem"],
            ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost", "-keyout", "server.key", "-out", "server.csr"],
            ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
             "-copy_extensions", "copy", "-out", "server.pem"],
        ):  # fmt: skip
            subprocess.run(["openssl", *argv], cwd=self.folder, check=True, capture_output=True)
