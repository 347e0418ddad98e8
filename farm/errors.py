"""The whole exception tree. A wrong number is a verdict, never an exception.

FarmError
├── UsageError            exit 2: what the user gave us cannot be used; nothing has run
│   └── InvalidInput      one or more Problems, each with file, line and cure
├── BuildError            exit 3: the agent or a runtime bundle cannot be made or found
└── InfraError            exit 3: a device, link or disk failed; says nothing about the model
    ├── DeviceLost            the link broke or the device went away
    ├── DeviceUnavailable     unauthorized, offline, missing accelerator device, …
    ├── HostKeyRefused        SSH host key unknown or changed
    ├── TransferFailed        bytes did not arrive whole
    ├── NoSpace               a disk is full
    ├── DeadlineExceeded      an operation outlasted its wall-clock limit
    └── LeaseLost             another farm owns the device now
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class FarmError(Exception):
    """Root of everything farm raises on purpose; the CLI turns it into one sentence and `exit_code`."""

    exit_code = 3
    retryable = False


class UsageError(FarmError):
    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with what a user wrote or gave: where it is, what it is, how to mend it."""

    message: str
    file: str | None = None
    line: int | None = None
    cure: str | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        return f"{where}{self.message}" + (f" ({self.cure})" if self.cure else "")


class InvalidInput(UsageError):
    """Bad input, reported all at once."""

    def __init__(self, problems: Iterable[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            problems = Problem(message=problems)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class BuildError(FarmError):
    """The agent or a runtime bundle cannot be built, found or used."""


class InfraError(FarmError):
    """Something around the model failed. `code` is the reason stored in the cell (see judge)."""

    code = "INFRA"

    def __init__(
        self, message: str, *, device: str | None = None, argv: tuple[str, ...] = (), output: str = ""
    ) -> None:
        super().__init__(message)
        self.device, self.argv, self.output = device, argv, output


class DeviceLost(InfraError):
    code = "DEVICE_LOST"
    retryable = True


class DeviceUnavailable(InfraError):
    code = "DEVICE_UNAVAILABLE"


class DeviceLeased(DeviceUnavailable):
    """Nothing is wrong with it, so nothing may be done about it either."""


class HostKeyRefused(InfraError):
    code = "HOST_KEY_REFUSED"


class TransferFailed(InfraError):
    code = "TRANSFER_FAILED"
    retryable = True


class NoSpace(InfraError):
    code = "NO_SPACE"


class DeadlineExceeded(InfraError):
    code = "DEADLINE_EXCEEDED"
    retryable = True


class LeaseLost(InfraError):
    code = "LEASE_LOST"
