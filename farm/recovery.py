"""What is done about a device that does not answer, narrowest first, each step bounded and told.

reconnect → wait and reconnect → the lab's `usb_reset` command → the lab's `reset` command → give up (the runner then
sets the device aside). Nothing here restarts an adb server or another device's link. `lock` is the lab's own lock.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from farm.errors import DeviceLeased, DeviceLost, DeviceUnavailable, FarmError, HostKeyRefused, LeaseLost
from farm.plan import PlannedDevice
from farm.session import Session

COMMAND_S = 60.0
"""How long a command of the lab may take."""
USB_S = 30.0
"""From a USB port's reset until the phone is back."""
BOOT_S = 180.0
"""From a reset until a device has started."""
PAUSE_S = 2.0
_FINAL = (HostKeyRefused, LeaseLost, DeviceLeased)
"""No reset mends these, and a device that somebody else uses must not be touched."""


def recover(
    session: Session, *, say: Callable[[str], None], stopped: Callable[[], bool], boot_s: float = BOOT_S
) -> FarmError | None:
    """Bring a session's device back; None when it answers again, else why it does not."""
    device = session.device
    steps: list[tuple[str, tuple[str, ...], float]] = [("reconnecting", (), PAUSE_S)]
    if device.usb_reset:
        steps.append(("resetting its USB port", device.usb_reset, USB_S))
    if device.reset:
        steps.append(("resetting it", device.reset, boot_s))
    failure: FarmError = DeviceLost("the device was not tried")
    for words, argv, patience_s in steps:
        if stopped():
            break
        say(words)
        if argv:
            try:
                lab_command(argv, device)
            except DeviceUnavailable as e:
                say(str(e))
                failure = e
                continue
        error = _open_within(session, patience_s, stopped)
        if error is None:
            say("it answers again")
            return None
        failure = error
        say(str(error))
        if isinstance(error, _FINAL):
            break
    return failure


def _open_within(session: Session, patience_s: float, stopped: Callable[[], bool]) -> FarmError | None:
    """Open a session, again and again for so long."""
    end, pause = time.monotonic() + patience_s, threading.Event()
    while True:
        error = _open(session)
        if error is None or isinstance(error, _FINAL) or stopped() or time.monotonic() >= end:
            return error
        pause.wait(min(PAUSE_S, max(0.0, end - time.monotonic())))


def _open(session: Session) -> FarmError | None:
    try:
        session.open()
    except FarmError as e:
        return e
    return None


def lab_command(argv: Sequence[str], device: PlannedDevice, *words: str, timeout_s: float = COMMAND_S) -> None:
    """Run a command of the inventory here, as argv. FARM_DEVICE and FARM_SERIAL name the device to it.

    Raises DeviceUnavailable with the end of its words if it fails or takes too long.
    """
    env = {**os.environ, "FARM_DEVICE": device.id, "FARM_SERIAL": device.address.get("serial", "")}
    try:
        done = subprocess.run(
            [*argv, *words], stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=timeout_s, check=False
        )
    except OSError as e:
        raise DeviceUnavailable(f"the lab's command {argv[0]!r} cannot be run: {e.strerror or e}") from e
    except subprocess.TimeoutExpired as e:
        raise DeviceUnavailable(f"the lab's command {argv[0]!r} did not end within {timeout_s:g} s") from e
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
        call = " ".join([argv[0], *words])
        raise DeviceUnavailable(f"the lab's command {call!r} ended with {done.returncode}: {said or 'no word'}")
