"""The real sshd and adb server of the transport tests, for studies behind a link."""

from tests.transports.conftest import adb_server as adb_server
from tests.transports.conftest import phones as phones
from tests.transports.conftest import sshd as sshd
