"""Having the machine start the night: a systemd user timer, a launchd job or a cron line."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

from farm.errors import FarmError, InvalidInput, Problem

Kind = Literal["systemd", "launchd", "cron"]
TIMEOUT_S = 30.0
_AT = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What is started, where, and when. name tells the nights of several inventories on one machine apart."""

    argv: tuple[str, ...]
    inventory: Path
    hour: int
    minute: int

    @property
    def folder(self) -> Path:
        """Where the night is started."""
        return self.inventory.parent

    @property
    def name(self) -> str:
        return f"farm-nightly-{hashlib.sha256(str(self.inventory).encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def parse_at(text: str) -> tuple[int, int]:
    """Read HH:MM. Raises InvalidInput."""
    found = _AT.match(text.strip())
    if not found:
        raise InvalidInput(Problem(message=f"{text!r} is no time of day", cure="write HH:MM, e.g. 02:15"))
    return int(found[1]), int(found[2])


def usual_kind() -> Kind:
    """What this machine starts jobs with."""
    if sys.platform == "darwin":
        return "launchd"
    return "systemd" if Path("/run/systemd/system").is_dir() and shutil.which("systemctl") else "cron"


def files(schedule: Schedule, kind: Kind, home: Path) -> dict[Path, str]:
    """The files of a systemd or launchd job, by path; none for cron, whose line is `cron_line`."""
    if kind == "systemd":
        units = home / ".config" / "systemd" / "user"
        return {
            units / f"{schedule.name}.service": _service(schedule),
            units / f"{schedule.name}.timer": _timer(schedule),
        }
    if kind == "launchd":
        return {home / "Library" / "LaunchAgents" / f"{_label(schedule)}.plist": _plist(schedule)}
    return {}


def cron_line(schedule: Schedule) -> str:
    """One line of a crontab, marked so that it can be found again."""
    # In crontab(5) a '%' that is not escaped ends the command.
    command = f"cd {shlex.quote(str(schedule.folder))} && {shlex.join(schedule.argv)}".replace("%", "\\%")
    return f"{schedule.minute} {schedule.hour} * * * {command} # {schedule.name}"


def install(schedule: Schedule, kind: Kind, home: Path | None = None) -> list[str]:
    """Write the job and start its schedule; return a sentence for each thing done. Raises FarmError, InvalidInput."""
    home = home or Path.home()
    done = []
    for path, text in files(schedule, kind, home).items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise InvalidInput(Problem(message=f"cannot write: {error.strerror or error}", file=str(path))) from error
        done.append(f"wrote {path}")
    if kind == "systemd":
        _run("systemctl", "--user", "daemon-reload")
        _run("systemctl", "--user", "enable", "--now", f"{schedule.name}.timer")
        done.append(
            f"started {schedule.name}.timer; `loginctl enable-linger` keeps it running while you are logged out"
        )
    elif kind == "launchd":
        (path,) = files(schedule, kind, home)
        _run("launchctl", "bootout", f"gui/{os.getuid()}/{_label(schedule)}", must=False)
        _run("launchctl", "bootstrap", f"gui/{os.getuid()}", str(path))
        done.append(f"loaded {_label(schedule)}")
    else:
        _write_crontab([*_other_lines(schedule), cron_line(schedule)])
        done.append(f"added to the crontab: {cron_line(schedule)}")
    return done


def uninstall(schedule: Schedule, kind: Kind, home: Path | None = None) -> list[str]:
    """Remove what `install` made; return a sentence for each thing done, none if there was nothing."""
    home = home or Path.home()
    there = [path for path in files(schedule, kind, home) if path.exists()]
    if kind == "systemd" and there:
        _run("systemctl", "--user", "disable", "--now", f"{schedule.name}.timer", must=False)
    if kind == "launchd" and there:
        _run("launchctl", "bootout", f"gui/{os.getuid()}/{_label(schedule)}", must=False)
    for path in there:
        path.unlink()
    if kind == "systemd" and there:
        _run("systemctl", "--user", "daemon-reload", must=False)
    done = [f"removed {path}" for path in there]
    if kind == "cron":
        lines = _crontab()
        rest = _other_lines(schedule)
        if len(rest) != len(lines):
            _write_crontab(rest)
            done.append("removed the line from the crontab")
    return done


def _service(schedule: Schedule) -> str:
    # Paths may hold spaces and quotes; systemd reads C escapes and expands % and $ itself.
    words = " ".join('"' + _unit(word) + '"' for word in schedule.argv)
    folder = str(schedule.folder).replace("%", "%%")
    return (
        "[Unit]\nDescription=farm nightly\n\n"
        f"[Service]\nType=oneshot\nWorkingDirectory={folder}\nExecStart={words}\n"
        # 1: a model failed, 3: something was not judged. Both are findings, not a broken service.
        "SuccessExitStatus=1 3\nTimeoutStartSec=infinity\nKillMode=mixed\nTimeoutStopSec=900\nNice=5\n"
    )


def _unit(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")


def _timer(schedule: Schedule) -> str:
    return (
        "[Unit]\nDescription=farm nightly\n\n"
        f"[Timer]\nOnCalendar=*-*-* {schedule.hour:02}:{schedule.minute:02}:00\nPersistent=true\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )


def _label(schedule: Schedule) -> str:
    return f"org.litert-farm.{schedule.name}"


def _plist(schedule: Schedule) -> str:
    words = "".join(f"    <string>{escape(word)}</string>\n" for word in schedule.argv)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">\n'
        f'<plist version="1.0">\n<dict>\n  <key>Label</key>\n  <string>{_label(schedule)}</string>\n'
        f"  <key>ProgramArguments</key>\n  <array>\n{words}  </array>\n"
        f"  <key>WorkingDirectory</key>\n  <string>{escape(str(schedule.folder))}</string>\n"
        "  <key>StartCalendarInterval</key>\n  <dict>\n"
        f"    <key>Hour</key>\n    <integer>{schedule.hour}</integer>\n"
        f"    <key>Minute</key>\n    <integer>{schedule.minute}</integer>\n  </dict>\n</dict>\n</plist>\n"
    )


def _other_lines(schedule: Schedule) -> list[str]:
    return [line for line in _crontab() if not line.rstrip().endswith(f"# {schedule.name}")]


def _crontab() -> list[str]:
    done = _call("crontab", "-l")
    if done.returncode == 0:
        return done.stdout.splitlines()
    if "no crontab" in done.stderr.lower():
        return []
    # Writing back a crontab that could not be read would lose the user's own lines.
    raise FarmError(f"the crontab cannot be read: {done.stderr.strip() or done.returncode}; nothing was changed")


def _write_crontab(lines: Sequence[str]) -> None:
    done = _call("crontab", "-", text="".join(f"{line}\n" for line in lines))
    if done.returncode != 0:
        raise FarmError(f"the crontab was not taken: {done.stderr.strip() or done.returncode}")


def _run(*argv: str, must: bool = True) -> None:
    done = _call(*argv)
    if must and done.returncode != 0:
        raise FarmError(f"{shlex.join(argv)} failed: {(done.stderr or done.stdout).strip() or done.returncode}")


def _call(*argv: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise InvalidInput(
            Problem(
                message=f"this machine has no {argv[0]}", cure="choose another --with, or start `farm nightly` yourself"
            )
        ) from error
    except subprocess.TimeoutExpired as error:
        raise FarmError(f"{shlex.join(argv)} did not answer within {TIMEOUT_S:.0f} s") from error
