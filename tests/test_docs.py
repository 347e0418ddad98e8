"""The documents hold what they promise: examples that load, options that exist, a matrix that is a real run's."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]


def fenced(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_example_inventory_loads(tmp_path: Path) -> None:
    from farm.inventory import load_inventory

    models = tmp_path / "models"
    models.mkdir()
    for name in ("encoder.tflite", "other.tflite"):
        (models / name).write_bytes(b"\x1c\x00\x00\x00TFL3")
    (tmp_path / "real.npz").write_bytes(b"")
    file = tmp_path / "inventory.yaml"
    file.write_text(fenced(CHECKOUT / "docs" / "inventory.md", "yaml")[0])
    inventory = load_inventory(file)
    assert [d.id for d in inventory.devices] == ["this-machine", "second-gpu"]
    assert "gpu-low" in inventory.configs


def test_every_config_is_documented() -> None:
    from farm.configs import CONFIGS

    text = (CHECKOUT / "docs" / "inventory.md").read_text()
    assert not [name for name in CONFIGS if f"`{name}`" not in text]


def test_the_python_page_calls_sweep_as_it_is() -> None:
    sweep = importlib.import_module("farm.sweep").sweep
    call = re.search(
        r"result = sweep\((.*?)^\)", (CHECKOUT / "docs" / "python.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert call
    named = set(re.findall(r"^\s+(\w+)=", call[1], re.MULTILINE))
    assert named <= set(inspect.signature(sweep).parameters)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_options_named_in_shell_examples_exist(page: Path) -> None:
    import click

    from farm.cli._app import app

    context = click.Context(app)
    for line in "".join(fenced(page, "sh")).splitlines():
        words = line.split("#")[0].split()
        if words[:1] != ["farm"] or len(words) < 2:
            continue
        command = app.get_command(context, words[1])
        assert command is not None, line
        if isinstance(command, click.Group):
            command = command.commands[words[2]]
        known = {opt for parameter in command.params for opt in (*parameter.opts, *parameter.secondary_opts)} | {
            "--help"
        }
        assert {w.split("=")[0] for w in words if w.startswith("-")} <= known, line


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_shows_the_kept_matrix_of_a_real_run() -> None:
    done = subprocess.run(
        [sys.executable, "tools/refresh_readme.py", "--check"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
