"""The command line as a user meets it: help with an example everywhere, every problem one sentence and a code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from farm.cli._app import app, run

README = Path(__file__).resolve().parents[2] / "README.md"
DOCS = README.parent / "docs"


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and subcommand with its full name."""
    context = click.Context(app, info_name="farm")
    waiting = [(f"farm {name}", app.get_command(context, name)) for name in app.list_commands(context)]
    while waiting:
        name, command = waiting.pop()
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            waiting += [(f"{name} {sub}", inner) for sub, inner in command.commands.items()]


def farm(*argv: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "farm", *argv],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_shows_an_example_of_itself(name: str, command: click.Command) -> None:
    text = command.get_help(click.Context(command, info_name=name))
    assert "Examples:" in text
    if not isinstance(command, click.Group):
        assert f"\n  {name}" in text.partition("Examples:")[2].replace("\n    ", "\n  ")
    assert command.get_short_help_str()


@pytest.mark.parametrize("name", sorted(name for name, _ in commands()))
def test_every_command_is_documented(name: str) -> None:
    pages = README.read_text() + "".join(page.read_text() for page in DOCS.glob("*.md"))
    assert f"{name} " in pages or f"`{name}`" in pages, f"neither README.md nor docs/ mention {name}"


def test_the_command_pages_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "tools/command_pages.py", "--check"],
        cwd=README.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_version_needs_neither_click_nor_numpy() -> None:
    code = "import sys; sys.argv[1:] = ['--version']; from farm.cli import main; main(); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, modules = done.stdout.splitlines()
    assert version.startswith("farm 0.")
    assert not {"click", "numpy", "pydantic", "rich", "msgspec"} & set(eval(modules))


def test_help_imports_no_heavy_module() -> None:
    code = "import sys; from farm.cli._app import run; run(['--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "pydantic", "rich", "msgspec", "paramiko", "adbutils"} & set(
        eval(done.stdout.splitlines()[-1])
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["sweeep"], "there is no command 'sweeep'; the nearest one is 'sweep'"),
        (["sweep", "--bogus"], "No such option"),
        (["sweep"], "there is nothing to sweep"),
        (["plan"], "there is nothing to plan"),
        (["sweep", "m.tflite", "--input-shape", "x=1,a"], "is not NAME=1,8"),
        (["sweep", "m.tflite", "--input-shape", "x=0"], "is not NAME=1,8"),
        (["sweep", "m.tflite", "--backends", "cpu,,gpu"], "empty name"),
        (["sweep", "m.tflite", "--input-shape", "x=1", "--input-shape", "x=2"], "two shapes"),
        (["sweep", "m.tflite", "--min-cosine", "2"], "--min-cosine"),
        (["sweep", "m.tflite", "--repeats", "0"], "--repeats"),
        (["sweep", "m.tflite", "--json-output", "/no/such/folder/m.json"], "its folder does not exist"),
        (["sweep", "m.tflite", "--resume", "runs/x"], "models cannot be given with it"),
        (["sweep", "--resume", "runs/x", "--seed", "3"], "seed cannot be given with it"),
        (["sweep", "m.tflite", "--retry-infra"], "add --resume RUN"),
        (["report", "no-such-run"], "there is no matrix here"),
        (["report", ".", "--format", "pdf"], "'pdf' is not one of"),
        (["probe", "nobody"], "no device 'nobody' in the inventory"),
    ],
)
def test_bad_usage_is_a_sentence_and_exit_2(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.startswith("farm: ")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (None, "gone.tflite"),
        (b"", "empty.tflite"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "pointer.tflite"),
        (b"<!DOCTYPE html><html></html>", "page.tflite"),
        (b"\x00" * 64, "zeros.tflite"),
    ],
    ids=["missing", "empty", "lfs-pointer", "html", "zeros"],
)
def test_a_model_that_is_none_is_refused_and_nothing_runs(
    content: bytes | None,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content)
    assert run(["sweep", name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert name in err
    assert not Path("runs").exists()


def test_every_bad_model_gets_its_own_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["sweep", "a.tflite", "b.tflite", "--config", "gpu-fp8", "--device", "nobody"]) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in ("a.tflite", "b.tflite", "gpu-fp8", "nobody"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices: [{id: a, transport: local, colour: red}]\n", "colour"),
        ("devices: 3\n", "devices"),
        ("[]\n", "inventory.yaml"),
        ("devices: [\n", "inventory.yaml"),
    ],
    ids=["unknown-key", "wrong-type", "a-list", "not-yaml"],
)
def test_a_bad_inventory_is_refused_with_its_place(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inventory.yaml").write_text(text)
    assert run(["sweep", "--inventory", "inventory.yaml"]) == 2
    err = capsys.readouterr().err
    assert "inventory.yaml" in err
    assert words in err
    assert not Path("runs").exists()


def test_an_unexpected_fault_asks_for_a_report_and_keeps_its_traceback_for_v(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    @click.option("-v", "--verbose", is_flag=True)
    def command(verbose: bool) -> None:
        raise ZeroDivisionError("a bug")

    # A fault that farm does not have cannot be met otherwise; only the command is put in, everything around it is real.
    monkeypatch.setattr("farm.cli.judge.command", command)
    assert run(["judge"]) == 3
    err = capsys.readouterr().err
    assert "a fault of farm itself: ZeroDivisionError: a bug" in err
    assert "Traceback" not in err
    assert run(["judge", "-v"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_leaves_early_causes_no_traceback() -> None:
    code = f"{sys.executable} -m farm sweep --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_devices_without_an_inventory_are_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["devices"]) == 0
    assert "local" in capsys.readouterr().out


def test_a_latin1_terminal_gets_a_report_all_the_same() -> None:
    done = farm("devices", "--help", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_probe_tells_the_platform_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    monkeypatch.chdir(tmp_path)
    assert run(["devices", "--json"]) == 0
    device = json.loads(capsys.readouterr().out)[0]["id"]
    assert run(["probe", device, "--json"]) == 0
    assert "-" in json.loads(capsys.readouterr().out)["platform"]


def test_runtime_list_names_the_installed_wheel(capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.metadata
    import json

    assert run(["runtime", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    version = importlib.metadata.version("ai-edge-litert")
    mine = [r for r in listed if r["version"] == version and r["origin"].startswith("wheel")]
    assert mine
    assert len(mine[0]["sha256"]) == 64
    assert run(["runtime", "list"]) == 0
    assert mine[0]["sha256"][:16] in capsys.readouterr().out


def test_agent_build_prints_a_program_that_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agent", "build"]) == 0
    path = capsys.readouterr().out.strip()
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr


def test_doctor_gives_a_line_per_part_and_a_cure_for_what_is_not_well(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    code = run(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in checks][:3] == ["python", "runtime", "agent"]
    assert {"gpu", "adb", "folders"} <= {c["name"] for c in checks}
    assert all(c["cure"] for c in checks if c["state"] != "ok")
    assert code == (3 if any(c["state"] == "fail" for c in checks) else 0)
