"""Every transport keeps the contract."""

from tests.transports.contract import TransportContract


class TestEveryTransport(TransportContract):
    """See contract.py; `link` comes from conftest.py, once per way to a device."""
