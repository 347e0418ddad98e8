"""The links the contract runs over: this machine, a host behind a real sshd, phones behind a real adb server."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farm.transports.adb import AdbTransport
from farm.transports.local import LocalTransport
from farm.transports.ssh import SshTransport
from tests.lab.adb_server import AdbServer, Phones
from tests.lab.sshd import Sshd, sshd_program
from tests.transports.contract import Link

TINY = "/data/local/tmp/tiny"
LINKS = ("local", "ssh", "adb", "old_adb")


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a disk of 1 MiB at `folder`; gives None where mounting is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=1777", "farm-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def tiny_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A disk of 1 MiB on this machine; None where mounting is not allowed."""
    with small_disk(tmp_path_factory.mktemp("tiny")) as folder:
        yield folder


@pytest.fixture(params=LINKS)
def link(request: pytest.FixtureRequest) -> Link:
    """One link of each kind in turn."""
    made: Link = request.getfixturevalue(f"{request.param}_link")
    return made


@pytest.fixture
def local_link(tmp_path_factory: pytest.TempPathFactory, tiny_disk: Path | None) -> Iterator[Link]:
    transport = LocalTransport()
    transport.connect(1)
    folder = tmp_path_factory.mktemp("far")
    yield Link(
        transport=transport,
        folder=str(folder),
        fresh=LocalTransport,
        tiny=str(tiny_disk) if tiny_disk else None,
    )
    transport.close()


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A running sshd that tests share and leave as it is."""
    if sshd_program() is None:
        pytest.skip("sshd is not installed (openssh-server)")
    server = Sshd(folder=tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def ssh_link(sshd: Sshd, tmp_path_factory: pytest.TempPathFactory, tiny_disk: Path | None) -> Iterator[Link]:
    def fresh() -> SshTransport:
        return SshTransport("lab", config=sshd.config, known_hosts=sshd.known_hosts)

    transport = fresh()
    transport.connect(15)
    folder = tmp_path_factory.mktemp("far")
    yield Link(transport=transport, folder=str(folder), fresh=fresh, tiny=str(tiny_disk) if tiny_disk else None)
    transport.close()


@pytest.fixture(scope="session")
def adb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdbServer]:
    """A running adb server that tests share and leave running."""
    server = AdbServer(tmp_path_factory.mktemp("adb"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def phones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phones]:
    """Two phones with a small disk at TINY: a modern one, and one from before `shell_v2`."""
    root = tmp_path_factory.mktemp("phones")
    with small_disk(root / f"phone0{TINY}") as one, small_disk(root / f"phone1{TINY}") as other:
        made = Phones(root, 2)
        made.tell(1, faults={"legacy": True})
        made.has_tiny_disk = one is not None and other is not None
        yield made
        made.stop()


@pytest.fixture
def adb_link(adb_server: AdbServer, phones: Phones) -> Iterator[Link]:
    yield from _adb_link(adb_server, phones, 0)


@pytest.fixture
def old_adb_link(adb_server: AdbServer, phones: Phones) -> Iterator[Link]:
    yield from _adb_link(adb_server, phones, 1)


def _adb_link(adb_server: AdbServer, phones: Phones, number: int) -> Iterator[Link]:
    phone = phones.phones[number]
    tiny = TINY if phones.has_tiny_disk else None

    def fresh() -> AdbTransport:
        return AdbTransport(phone.serial, adb_server=adb_server.address)

    transport = fresh()
    transport.connect(15)
    folder = f"/data/local/tmp/{secrets.token_hex(6)}"
    transport.run(["mkdir", folder], 15)
    yield Link(transport=transport, folder=folder, fresh=fresh, tiny=tiny, merged=number == 1)
    transport.run(["rm", "-rf", folder], 15)
    transport.close()
