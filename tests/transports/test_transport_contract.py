"""Every transport keeps the contract."""

from __future__ import annotations

import importlib

import pytest

from farm.errors import InvalidInput
from farm.plan import PlannedDevice
from tests.transports.contract import TransportContract


class TestEveryTransport(TransportContract):
    """See contract.py; `link` comes from conftest.py, once per way to a device."""


@pytest.mark.parametrize(
    ("kind", "address", "attribute", "value"),
    [
        ("local", {}, "shares_filesystem", True),
        ("adb", {"serial": "ABC", "adb_server": "lab:6000"}, "server", ("lab", 6000)),
        ("adb", {"serial": "ABC"}, "serial", "ABC"),
        ("ssh", {"host": "me@mac"}, "host", "me@mac"),
    ],
)
def test_a_planned_device_names_its_transport(
    kind: str, address: dict[str, str], attribute: str, value: object
) -> None:
    device = PlannedDevice(id="d", transport=kind, address=address, env={"A": "b"})
    link = importlib.import_module(f"farm.transports.{kind}").open_transport(device)
    assert (link.kind, link.env, getattr(link, attribute)) == (kind, {"A": "b"}, value)


def test_an_ssh_device_without_a_host_is_refused() -> None:
    from farm.transports.ssh import open_transport

    with pytest.raises(InvalidInput, match="no host"):
        open_transport(PlannedDevice(id="d", transport="ssh"))
