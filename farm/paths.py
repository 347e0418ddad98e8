"""Files that users name: is this one we can read, and how to write where they said.

Comes before every door: models, inputs, inventories and specs are checked here before they are opened, because opening
a pipe waits for its other end and reading a device may never end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from farm import codec
from farm.errors import InvalidInput, Problem

_SORTS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_STREAMS = ("/dev/std", "/dev/fd/", "/proc/")
"""Names of files that somebody holds open: a rename would put another file in their place."""


def check_text(path: Path, cure: str) -> None:
    """Raise InvalidInput if a path cannot be written into a plan, or handed to the agent: one line of Unicode."""
    text = str(path.absolute())
    if any(c in text for c in "\n\r\0"):
        raise _refused(path, "this path holds a line break", cure)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        shown = Path(os.fsencode(path).decode("utf-8", "backslashreplace"))
        message = "this path is not text in UTF-8, or this terminal's locale cannot show it"
        raise _refused(shown, message, f"{cure}, or set LC_ALL=C.UTF-8") from e


def check_file(path: Path) -> None:
    """Raise InvalidInput if a path that exists is neither a file nor a folder, or cannot be written down."""
    check_text(path, "rename it")
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # whoever opens it says what is wrong, in its own words
    for is_sort, what in _SORTS:
        if is_sort(mode):
            raise _refused(path, f"is {what}, not a file", "save what it gives to a file, and name that")


def same_file_key(path: Path) -> str:
    """A text that is equal for two ways to name one file; a loop of links is its own."""
    try:
        return str(path.resolve())
    except (OSError, RuntimeError):
        return str(path.absolute())


def check_folder(path: Path, cure: str) -> None:
    """Raise InvalidInput if a folder could not be made, or written to, there; nothing is made."""
    check_text(path, cure)
    there = path.absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):
        raise _refused(there, "is not a folder", cure)
    if not os.access(there, os.W_OK | os.X_OK):
        raise _refused(there, "this folder cannot be written to", cure)


def write_named(path: Path, data: bytes) -> None:
    """Write a result where the user said: a file whole or not at all, behind a link too; a device or pipe directly.

    Raises OSError, also for a pipe that nobody reads.
    """
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        regular = True
    if regular and not str(path).startswith(_STREAMS):
        codec.write_whole(Path(os.path.realpath(path)), data)
        return
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(fd, True)
    with os.fdopen(fd, "wb") as f:
        f.write(data)


def _refused(path: Path, message: str, cure: str) -> InvalidInput:
    return InvalidInput(Problem(message=message, file=str(path).replace("\n", "\\n").replace("\r", "\\r"), cure=cure))
