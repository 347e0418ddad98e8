"""What only the transport of this machine does."""

from __future__ import annotations

import os
import sys
import time

import pytest

from farm.errors import DeadlineExceeded
from farm.transports.local import LocalTransport

HURRIED = """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
os.write(2, b"end")
os.write(1, b"x" * 1_000_000)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pipes can only be enlarged on Linux")
def test_output_still_in_the_pipe_when_the_program_ends_is_not_lost() -> None:
    for _ in range(20):
        done = LocalTransport().run([sys.executable, "-c", HURRIED], 20)
        assert (len(done.stdout), done.stderr) == (1_000_000, b"end")


def test_the_devices_environment_is_added_to_ours_and_the_calls_own_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_OURS", "1")
    done = LocalTransport({"A": "1", "B": "1"}).run(["sh", "-c", "echo $FARM_OURS$A$B"], 10, env={"B": "2"})
    assert done.stdout == b"112\n"


def test_a_program_that_left_its_group_does_not_delay_the_end() -> None:
    start = time.monotonic()
    done = LocalTransport().run(["sh", "-c", "setsid sleep 3 & echo out"], 20)
    assert done.stdout == b"out\n"
    assert time.monotonic() - start < 2


def test_no_descriptor_is_left_open() -> None:
    link = LocalTransport()
    link.run(["true"], 10)
    before = os.listdir("/dev/fd")
    for _ in range(5):
        link.run(["sh", "-c", "exit 3"], 10, stdin=b"x")
        link.run(["farm-has-no-such-program"], 10)
        with pytest.raises(DeadlineExceeded):
            link.run(["sleep", "9"], 0.05)
    assert len(os.listdir("/dev/fd")) == len(before)


def test_starting_a_program_is_cheap() -> None:
    # Measured 0.5 ms on an idle machine; ten times that leaves room for a busy one.
    link = LocalTransport()
    best = min(link.run(["/bin/true"], 10).wall_s for _ in range(20))
    assert best < 0.02
