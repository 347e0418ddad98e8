"""What a timer, a launchd job and a cron line hold, and that installing keeps everything else as it was."""

from __future__ import annotations

import os
import plistlib
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from farm.errors import FarmError, InvalidInput
from farm.nightly.schedule import Schedule, cron_line, files, install, parse_at, uninstall

HOSTILE = '/lab/50% & $HOME/it\'s "here"/inventory.yaml'


def schedule(inventory: str = HOSTILE) -> Schedule:
    path = Path(inventory)
    return Schedule(
        argv=("/opt/py", "-m", "farm", "nightly", "run", "--inventory", inventory), inventory=path, hour=2, minute=5
    )


def test_times_of_day() -> None:
    assert parse_at("02:15") == (2, 15)
    assert parse_at("23:59") == (23, 59)
    for wrong in ("24:00", "2", "02:60", "2:5", "02:15 *"):
        with pytest.raises(InvalidInput):
            parse_at(wrong)


def test_two_inventories_have_two_jobs() -> None:
    assert schedule("/a/x.yaml").name != schedule("/a/y.yaml").name


def test_a_cron_line_runs_exactly_the_command() -> None:
    line = cron_line(schedule())
    when, command = line[: line.index("cd ")], line[line.index("cd ") :]
    assert when == "5 2 * * * "
    # cron hands the line to sh after taking the escapes of '%' away.
    command = command.replace("\\%", "%").replace("&& /opt/py -m farm", "|| printf '%s\\n'", 1)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == HOSTILE


def test_a_launchd_job_is_a_valid_property_list(tmp_path: Path) -> None:
    ((_, text),) = files(schedule(), "launchd", tmp_path).items()
    made = plistlib.loads(text.encode())
    assert made["ProgramArguments"][-1] == HOSTILE
    assert made["StartCalendarInterval"] == {"Hour": 2, "Minute": 5}


def test_a_systemd_service_quotes_its_words(tmp_path: Path) -> None:
    made = files(schedule(), "systemd", tmp_path)
    service = next(text for path, text in made.items() if path.suffix == ".service")
    start = next(line for line in service.splitlines() if line.startswith("ExecStart="))
    # systemd undoes %% and $$ after unquoting, which follows C rules that shlex shares here.
    words = [w.replace("%%", "%").replace("$$", "$") for w in shlex.split(start.removeprefix("ExecStart="))]
    assert tuple(words) == schedule().argv
    timer = next(text for path, text in made.items() if path.suffix == ".timer")
    assert "OnCalendar=*-*-* 02:05:00" in timer


@pytest.fixture
def crontab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in crontab that keeps its lines in a file: the real one would change the tester's own table."""
    table = tmp_path / "table"
    program = tmp_path / "bin" / "crontab"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -l ]; then [ -e {table} ] && cat {table} && exit 0; echo "no crontab for me" >&2; exit 1; fi\n'
        f"cat > {table}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return table


def test_cron_is_installed_once_and_removed_without_touching_other_lines(crontab: Path) -> None:
    crontab.write_text("0 5 * * * backup # mine\n")
    install(schedule(), "cron")
    install(schedule(), "cron")
    assert crontab.read_text().splitlines() == ["0 5 * * * backup # mine", cron_line(schedule())]
    assert uninstall(schedule(), "cron")
    assert crontab.read_text() == "0 5 * * * backup # mine\n"
    assert uninstall(schedule(), "cron") == []


def test_a_first_crontab_is_made(crontab: Path) -> None:
    install(schedule(), "cron")
    assert crontab.read_text() == cron_line(schedule()) + "\n"


def test_a_crontab_that_cannot_be_read_is_not_overwritten(crontab: Path) -> None:
    (crontab.parent / "bin" / "crontab").write_text("#!/bin/sh\necho 'permission denied' >&2\nexit 1\n")
    with pytest.raises(FarmError, match="nothing was changed"):
        install(schedule(), "cron")
    assert not crontab.exists()
