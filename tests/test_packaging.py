"""The wheel: what it carries, and that it works with the checkout out of sight."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

CHECKOUT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-zig.lock")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(CHECKOUT)], check=True, timeout=120, capture_output=True)
    (made,) = folder.glob("litert_farm-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as z:
        z.extractall(folder)
    return folder


def farm(installed: Path, cwd: Path, code: str) -> str:
    """Run Python with the unpacked wheel before the editable install, in a folder that is no checkout."""
    start = f"import sys; sys.path = [{str(installed)!r}, *(p for p in sys.path if p != {str(CHECKOUT)!r})];"
    done = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-c", f"{start}{code}"],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=400,  # without a C compiler the agent is built by zig, whose first build takes minutes
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_carries_what_farm_reads_at_run_time(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
    for needed in (
        "farm/py.typed",
        "farm/_data/inventory.yaml",
        "farm/_data/agents/litert_agent.c",
        "farm/_data/agents/PROTOCOL.md",
        "farm/schemas/matrix.schema.json",
        "farm/schemas/inventory.schema.json",
    ):
        assert needed in names, needed
    assert any(n.startswith("farm/canaries/") and n.endswith(".tflite") for n in names)
    assert any(n.startswith("farm/_data/demo/") and n.endswith(".tflite") for n in names)
    assert any(n.startswith("farm/_data/device_profiles/") and n.endswith(".yaml") for n in names)


def test_the_wheel_carries_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
    tops = {n.split("/")[0] for n in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"farm"}
    assert not [n for n in names if "__pycache__" in n or n.endswith((".pyc", ".so", ".log"))]
    assert wheel.stat().st_size < 4 << 20


def test_an_installed_farm_finds_its_own_files(installed: Path, tmp_path: Path) -> None:
    code = """
import json, farm
from farm.resources import resource_path
names = ("agents", "device_profiles", "demo", "inventory.yaml")
print(json.dumps([farm.__file__, *[str(resource_path(n)) for n in names]]))
"""
    for path in json.loads(farm(installed, tmp_path, code)):
        assert path.startswith(str(installed)), path


def test_an_installed_farm_plans_its_demonstration(installed: Path, tmp_path: Path) -> None:
    code = """
from farm.cli._app import run
from farm.resources import resource_path
raise SystemExit(run(["plan", "--inventory", str(resource_path("inventory.yaml")), "--json"]))
"""
    plan = json.loads(farm(installed, tmp_path, code))
    assert plan["cells"]
    assert all(case["model_path"].startswith(str(installed)) for case in plan["cases"])


def test_an_installed_farm_builds_its_agent(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path / "cache"))
    path = farm(installed, tmp_path, "from farm.cli._app import run; raise SystemExit(run(['agent', 'build']))").strip()
    assert subprocess.run([path, "--version"], timeout=20, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("name", LOCKS)
def test_lock_files_pin_by_hash_and_name_no_index(name: str) -> None:
    text = (CHECKOUT / name).read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
    for block in text.replace("\\\n", " ").splitlines():
        if block and not block.startswith("#"):
            assert "==" in block, block
            assert "--hash=sha256:" in block, block


def test_lock_files_hold_every_dependency() -> None:
    """A dependency added to pyproject.toml without `make lock` would be missing in .venv."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    locked = {line.split("==")[0] for line in (CHECKOUT / "requirements.lock").read_text().splitlines() if "==" in line}
    text = (CHECKOUT / "requirements-dev.lock").read_text()
    developers = {line.split("==")[0] for line in text.splitlines() if "==" in line}
    assert {name_of(d) for d in project["project"]["dependencies"]} <= locked
    groups = project["dependency-groups"]
    assert {name_of(d) for d in groups["build"]} <= locked
    assert {name_of(d) for d in groups["dev"]} | locked <= developers


def name_of(requirement: str) -> str:
    """The normalised name of a requirement."""
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")


def test_every_dependency_has_its_line_in_the_readme() -> None:
    readme = (CHECKOUT / "README.md").read_text()
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    for requirement in project["project"]["dependencies"]:
        assert f"| {name_of(requirement)} |" in readme, f"README.md says nowhere why {requirement} is there"
    assert "asyncio-mqtt" in readme


def test_make_help_names_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=CHECKOUT, capture_output=True, text=True, timeout=30, check=True)
    for target in ("sweep", "test", "test-slow", "check", "lab-gpus", "clean"):
        assert f"make {target} " in done.stdout
