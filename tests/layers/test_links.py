"""A study behind a link finds what it finds here: same op, same label, same figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.layers.study import Study
from farm.transports.adb import AdbTransport
from farm.transports.base import Transport
from farm.transports.ssh import SshTransport
from tests.lab.adb_server import AdbServer, Phones
from tests.lab.sshd import Sshd
from tests.layers.kit import named, study
from tests.layers.planted import planted

pytestmark = pytest.mark.gpu
GRAPH = planted("underflow", 1, branch=True)


def figures(found: Study) -> list[tuple[int, float | None]]:
    return [(row.layer.tensor, row.health.snr_db) for row in found.rows]


def same_as_here(folder: Path, link: Transport) -> None:
    (here,) = study(folder / "here", GRAPH.data)
    (there,) = study(folder / "there", GRAPH.data, link=link, budget_bytes=512)
    assert named(there) == named(here) == (GRAPH.op, "intrinsic")
    assert there.chunks > 1
    assert {t for t, _ in figures(there)} == {t for t, _ in figures(here)}


def test_over_ssh(tmp_path: Path, sshd: Sshd) -> None:
    same_as_here(tmp_path, SshTransport("lab", config=sshd.config, known_hosts=sshd.known_hosts))


def test_over_adb(tmp_path: Path, adb_server: AdbServer, phones: Phones) -> None:
    same_as_here(tmp_path, AdbTransport(phones.phones[0].serial, adb_server=adb_server.address))
