"""The directions imports may take: downwards in LAYERS, and never across the walls that keep judging off devices."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "farm"

# A room is a module or package directly under farm/. It imports rooms of layers above its own in this list (the
# foundation comes first), or its own files. Imports under TYPE_CHECKING are for the type checker and do not count.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "agent_protocol",
        "caches",
        "codec",
        "defaults",
        "record_text",
        "expressions",
        "environment",
        "errors",
        "flatbuffer",
        "native_library",
        "probe_parsers",
    ),
    ("delegation", "media", "user_code", "paths", "resources", "tflite_schema"),
    ("arrays", "configs", "metrics", "objects", "tflite_checks", "yaml_lines"),
    ("doors", "tensors", "runtimes", "tflite"),
    ("agents", "monitor", "metadata", "profiles"),
    ("graph", "rewrite"),
    ("float_copy", "hazards", "input_roles", "reductions"),
    ("inputs", "outcome"),
    ("bundles", "preprocess"),
    ("cases",),
    ("plan", "specs"),
    ("inventory", "store"),
    ("judge", "transports"),
    ("far_job", "lease", "sensors"),
    ("place", "assertions", "probe", "report", "classify"),
    ("diff", "judging", "session"),
    ("recovery",),
    (
        "collect",
        "policy",
        "exposed",
        "history",
        "records",
        "columns",
        "compare",
        "app_test",
        "layers",
        "runner",
    ),
    ("discovery", "events", "record_check", "reference"),
    ("canary", "predict"),
    ("prepare",),
    ("doctor", "sweep"),
    ("nightly", "serving"),
    ("prometheus", "site"),
    ("cli",),
    ("__main__",),
)
RANK = {room: rank for rank, layer in enumerate(LAYERS) for room in layer}

TOUCHES_DEVICES = {
    "exposed",
    "layers",
    "transports",
    "discovery",
    "recovery",
    "sensors",
    "far_job",
    "lease",
    "place",
    "probe",
    "session",
    "runner",
    "reference",
    "canary",
    "predict",
    "agents",
    "sweep",
    "nightly",
    "serving",
    "doctor",
    "prepare",
}
"""Rooms that connect, run or build something."""


def rooms() -> list[str]:
    return sorted(
        p.stem
        for p in PACKAGE.iterdir()
        if (p.suffix == ".py" and p.stem != "__init__") or (p / "__init__.py").is_file()
    )


def files_of(room: str) -> list[Path]:
    folder = PACKAGE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]


def imported_rooms(file: Path) -> set[str]:
    """The rooms of farm that `file` imports when it runs, lazily or not."""
    tree = ast.parse(file.read_text(), str(file))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("farm.")}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where they point; write farm.…"
            names = (node.module or "").split(".")
            if names[0] != "farm":
                continue
            if len(names) > 1:
                found.add(names[1])
            else:
                found |= {alias.name for alias in node.names if alias.name in RANK}
    return found


def reach(room: str) -> set[str]:
    """Every room that `room` pulls in, directly or through others."""
    seen: set[str] = set()
    waiting = [room]
    while waiting:
        for file in files_of(waiting.pop()):
            for other in imported_rooms(file) - seen:
                seen.add(other)
                waiting.append(other)
    return seen - {room}


def test_every_room_has_its_place_in_the_layers() -> None:
    unplaced = [room for room in rooms() if room not in RANK]
    assert not unplaced, f"place {unplaced} in LAYERS: which rooms may import them, which do they import?"


@pytest.mark.parametrize("room", rooms())
def test_imports_point_downwards(room: str) -> None:
    if room not in RANK:
        pytest.fail(f"{room} has no place in LAYERS")
    for file in files_of(room):
        upward = {other for other in imported_rooms(file) if other != room and RANK.get(other, -1) >= RANK[room]}
        assert not upward, f"{file.relative_to(PACKAGE)} imports {sorted(upward)}, which lie no lower than {room}"


@pytest.mark.parametrize("room", ["judge", "judging", "report", "plan", "metrics", "inventory", "cases"])
def test_what_needs_no_device_reaches_none(room: str) -> None:
    touched = reach(room) & TOUCHES_DEVICES
    assert not touched, (
        f"{room} reaches {sorted(touched)}; judging, planning and reporting work with nothing plugged in"
    )


def test_a_transport_knows_nothing_of_ours_but_errors() -> None:
    for file in files_of("transports"):
        known = imported_rooms(file) - {"transports"}
        assert known <= {"errors"}, (
            f"{file.relative_to(PACKAGE)} imports {sorted(known)}; a link carries bytes, no schema"
        )


def test_metrics_know_arrays_only() -> None:
    for file in files_of("metrics"):
        known = imported_rooms(file) - {"metrics"}
        assert not known, f"{file.relative_to(PACKAGE)} imports {sorted(known)}; metrics are two arrays in, numbers out"


def test_nothing_imports_the_command_line() -> None:
    for room in rooms():
        if room in ("cli", "__main__"):
            continue
        for file in files_of(room):
            assert "cli" not in imported_rooms(file), f"{file.relative_to(PACKAGE)} imports farm.cli"


def test_only_the_command_line_prints_or_exits() -> None:
    for room in rooms():
        if room == "cli":
            continue
        for file in files_of(room):
            tree = ast.parse(file.read_text(), str(file))
            # What runs only as `python -m farm.x` is a tool of the developers, not the product.
            body = [s for s in tree.body if not (isinstance(s, ast.If) and "__main__" in ast.unparse(s.test))]
            for node in (inner for statement in body for inner in ast.walk(statement)):
                if isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    assert called not in ("print", "sys.exit", "exit"), f"{file.name}:{node.lineno} calls {called}"


def test_the_agent_imports_nothing_of_farm() -> None:
    for file in (PACKAGE.parent / "agents").rglob("*"):
        if file.suffix in (".py", ".sh"):
            assert "import farm" not in file.read_text(), f"{file} imports farm"


def test_the_reader_of_imports_sees_lazy_and_plain_ones(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "import farm.store\n"
        "from farm.plan import Plan\n"
        "if TYPE_CHECKING:\n    from farm.sweep import sweep\n"
        "def f():\n    from farm import codec\n    from farm.report.value import Matrix\n"
    )
    assert imported_rooms(file) == {"store", "plan", "codec", "report"}
