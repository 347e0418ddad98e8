"""A real PostgreSQL of the tests' own: a cluster in a folder, reached by password over loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.ports import free_port, wait_until_it_listens

PASSWORD = "for-the-tests-only"


def postgres_programs() -> Path | None:
    """The folder of initdb and postgres; None where PostgreSQL is not installed. Debian keeps it off the PATH."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    return next(
        (p for p in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True) if (p / "initdb").exists()), None
    )


@dataclass(kw_only=True)
class Postgres:
    """One server. It refuses to run as root, so there it runs as the account its package made."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://farm:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        programs = postgres_programs()
        assert programs, "PostgreSQL is not installed"
        self.folder.mkdir(parents=True, exist_ok=True)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        user = "postgres" if os.geteuid() == 0 else None
        if user:
            for path in (self.folder, secret):
                shutil.chown(path, user)
        data = self.folder / "data"
        options = {"user": user, "cwd": "/", "env": {"PATH": os.defpath, "LC_ALL": "C"}}
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-U", "farm", "--pwfile", secret, "-A", "scram-sha-256", "-N"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,  # type: ignore[call-overload]
        )
        assert made.returncode == 0, made.stderr
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [programs / "postgres", "-D", data, "-p", str(self.port), "-c", "listen_addresses=127.0.0.1",
                 "-c", "unix_socket_directories=", "-c", "fsync=off"],
                stdout=log,
                stderr=log,
                **options,  # type: ignore[call-overload]
            )  # fmt: skip
        wait_until_it_listens(self.port, self.process, self.folder / "log")

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)  # PostgreSQL's "fast" shutdown
            self.process.wait(timeout=30)
            self.process = None
