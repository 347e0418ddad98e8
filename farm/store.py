"""The run folder and its journal: the only module that knows file names of results.

    ROOT/                          where runs are kept (default: ./runs)
      objects/ab/abcdef…           raw tensors by sha256, shared by all runs
      <utc>-<id>/
        plan.json                  every cell, written first
        journal.jsonl              append-only, fsynced: one Outcome per finished cell; the truth about what ran
        references/<case>.json     Reference
        hazards/<case>.json        CaseHazards: what FP16 cannot hold, of cases with a cell that failed in it
        devices/<id>/facts.json    what probing found
        devices/<id>/precision.json
        devices/<id>/software.json what the device was given: platform, agent, runtime files, by digest
        environment.json           what farm itself ran on: Python, system, package versions
        devices/<id>/log.txt       the device's own log
        cells/<cell>/log.txt       what agent, runtime and driver printed; cells/<cell>/result.json
        matrix.json report.html report.md junit.xml

Reading needs no lock (`farm judge RUN` works while the run goes on); writing claims the journal, so that two
processes never resume the same run.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from farm.codec import from_json, to_json, write_whole
from farm.configs import Config
from farm.environment import Environment
from farm.errors import InvalidInput, Problem
from farm.hazards import CaseHazards
from farm.objects import Objects, disk_errors
from farm.outcome import DeviceSoftware, Outcome, PrecisionClass, Reference
from farm.paths import check_file
from farm.plan import Cell, Plan, PlannedDevice

T = TypeVar("T")


def _safe(name: str, what: str) -> str:
    """Return `name` if it can be one path component here; ids come from files that anybody may have written."""
    bad = not name or name.startswith(".") or any(c in "/\\\0" or ord(c) < 32 for c in name)
    if bad or len(name.encode("utf-8", "surrogatepass")) > 200:
        raise InvalidInput(f"{what} {name!r} cannot be a file name; the plan or journal it comes from is damaged")
    return name


class RunStore:
    """One run folder. `close()` lets another process resume it; so does the end of this process, however it ends."""

    damage: list[str]
    """What could not be read, one sentence each, filled by the reading methods."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.objects = Objects(folder.parent / "objects")
        self.damage = []
        self._writing = threading.Lock()
        self._journal: int | None = None
        self._release: weakref.finalize[[int], RunStore] | None = None

    @classmethod
    def create(cls, root: Path, plan: Plan) -> RunStore:
        """Make `root/<run id>` with plan.json. Raises InvalidInput if the folder cannot be written."""
        folder = root / _safe(plan.run_id, "run id")
        with disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        try:
            with disk_errors(folder):
                folder.mkdir()
        except InvalidInput as e:
            if isinstance(e.__cause__, FileExistsError):
                raise InvalidInput(
                    Problem(message="this run exists already", file=str(folder), cure="continue it with --resume")
                ) from e
            raise
        with disk_errors(folder):
            write_whole(folder / "plan.json", to_json(plan, indent=2))
        store = cls(folder, plan)
        store.claim()
        return store

    @classmethod
    def open(cls, folder: Path) -> RunStore:
        """Open an existing run. Raises InvalidInput if it is not one or its plan is damaged."""
        file = folder / "plan.json"
        check_file(file)
        try:
            data = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as e:
            what = "is no run: it holds no plan.json" if os.path.isdir(folder) else "there is no such run folder"
            raise InvalidInput(
                Problem(message=what, file=str(folder), cure="name a folder that `farm sweep` has made")
            ) from e
        except OSError as e:
            raise InvalidInput(
                Problem(
                    message=f"cannot read the plan: {e.strerror or e}", file=str(file), cure="check its permissions"
                )
            ) from e
        try:
            plan = from_json(data, Plan)
        except msgspec.DecodeError as e:
            raise InvalidInput(
                Problem(
                    message=f"the plan is damaged or of another farm version: {e}", file=str(file), cure="sweep again"
                )
            ) from e
        if plan.schema_version != 1:
            raise InvalidInput(
                Problem(
                    message=f"the plan has schema version {plan.schema_version}; this farm reads version 1",
                    file=str(file),
                    cure="use the farm that wrote it",
                )
            )
        return cls(folder.resolve(), plan)

    def claim(self) -> None:
        """Become the only writer of this run, and mend a line that a dying process left half-written.

        Raises InvalidInput if another process is writing it. `create` and `append` claim by themselves; call it before
        resuming, so that no device is touched for a run that is still going on.
        """
        with self._writing:
            self._claim()

    def _claim(self) -> int:
        if self._journal is not None:
            return self._journal
        path = self.folder / "journal.jsonl"
        with disk_errors(path):
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                raise InvalidInput(
                    Problem(
                        message="another farm process is writing this run",
                        file=str(self.folder),
                        cure="wait for it to end, or stop it, then resume",
                    )
                ) from e
            with disk_errors(path):
                _mend(fd)
        except BaseException:
            os.close(fd)
            raise
        self._journal = fd
        # Not a file object: a store that is dropped without close() must let go quietly, as after kill -9.
        self._release = weakref.finalize(self, os.close, fd)
        return fd

    def close(self) -> None:
        """Give up the journal. Safe to call twice; the store can still be read."""
        with self._writing:
            if self._release is not None:
                self._release()
            self._journal = self._release = None

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, outcome: Outcome) -> None:
        """Write one journal line and fsync it. Thread-safe. Raises NoSpace; the journal is then as it was before."""
        line = to_json(outcome) + b"\n"
        with self._writing:
            fd = self._claim()
            with disk_errors(self.folder / "journal.jsonl"):
                before = os.fstat(fd).st_size
                try:
                    rest = memoryview(line)
                    while rest:
                        rest = rest[os.write(fd, rest) :]
                    os.fsync(fd)
                except OSError:
                    os.ftruncate(fd, before)
                    raise

    def extend(self, *, device: PlannedDevice, config: Config, cell: Cell) -> None:
        """Add a cell that was observed elsewhere to the plan; its outcome is already in the journal.

        A device of that id is replaced, a config or cell that is there is kept. Raises InvalidInput as `claim`.
        """
        with self._writing:
            self._claim()
            plan = self.plan
            extended = dataclasses.replace(
                plan,
                devices=(*(d for d in plan.devices if d.id != device.id), device),
                configs=plan.configs if any(c.name == config.name for c in plan.configs) else (*plan.configs, config),
                cells=plan.cells if any(c.id == cell.id for c in plan.cells) else (*plan.cells, cell),
            )
            path = self.folder / "plan.json"
            with disk_errors(path):
                write_whole(path, to_json(extended, indent=2))
            self.plan = extended

    def outcomes(self) -> dict[str, Outcome]:
        """Finished cells by id; of several lines about one cell the last counts.

        A torn last line is ignored; a damaged line elsewhere is skipped and listed in `damage`.
        """
        path = self.folder / "journal.jsonl"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as e:
            raise InvalidInput(Problem(message=f"cannot read the journal: {e.strerror or e}", file=str(path))) from e
        found: dict[str, Outcome] = {}
        lines = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                outcome = from_json(line, Outcome)
            except msgspec.DecodeError as e:
                if number < len(lines):
                    self._damaged(f"{path}:{number}: damaged line, its cell counts as not run ({e})")
                continue
            found[outcome.cell] = outcome
        return found

    def finished(self, *, retry_infra: bool = False) -> dict[str, Outcome]:
        """`outcomes`; with `retry_infra` without those that say nothing about the model (device or link lost)."""
        return {
            cell: outcome
            for cell, outcome in self.outcomes().items()
            if not (retry_infra and outcome.failure is not None and outcome.failure.infra)
        }

    def write_reference(self, reference: Reference) -> None:
        self._write(self.folder / "references" / f"{_safe(reference.case, 'case id')}.json", reference)

    def references(self) -> dict[str, Reference]:
        """References by case id."""
        found = (self._read(path, Reference) for path in sorted((self.folder / "references").glob("[!.]*.json")))
        return {reference.case: reference for reference in found if reference is not None}

    def write_hazards(self, hazards: CaseHazards) -> None:
        self._write(self.folder / "hazards" / f"{_safe(hazards.case, 'case id')}.json", hazards)

    def hazards(self) -> dict[str, CaseHazards]:
        """What was predicted, by case id; cases without an entry were never looked at."""
        found = (self._read(path, CaseHazards) for path in sorted((self.folder / "hazards").glob("[!.]*.json")))
        return {hazards.case: hazards for hazards in found if hazards is not None}

    def write_facts(self, device: str, facts: Mapping[str, Any]) -> None:
        self._write(self.device_folder(device) / "facts.json", dict(facts))

    def facts(self) -> dict[str, dict[str, Any]]:
        """Probed facts by device id."""
        found = {path.parent.name: self._read(path, dict[str, Any]) for path in self._device_files("facts.json")}
        return {device: facts for device, facts in found.items() if facts is not None}

    def write_precision(self, device: str, classes: list[PrecisionClass]) -> None:
        self._write(self.device_folder(device) / "precision.json", classes)

    def precision(self) -> list[PrecisionClass]:
        """What the canaries measured, all devices."""
        found = (self._read(path, list[PrecisionClass]) for path in self._device_files("precision.json"))
        return [one for classes in found if classes is not None for one in classes]

    def write_software(self, device: str, software: DeviceSoftware) -> None:
        self._write(self.device_folder(device) / "software.json", software)

    def software(self) -> dict[str, DeviceSoftware]:
        """What each device was given, by device id; runs of before this was kept have none."""
        found = {path.parent.name: self._read(path, DeviceSoftware) for path in self._device_files("software.json")}
        return {device: software for device, software in found.items() if software is not None}

    def write_environment(self, environment: Environment) -> None:
        self._write(self.folder / "environment.json", environment)

    def environment(self) -> Environment | None:
        """What farm ran on during this run, or None where that was not kept."""
        path = self.folder / "environment.json"
        return self._read(path, Environment) if path.is_file() else None

    def cell_folder(self, cell: str) -> Path:
        """Folder of a cell's log.txt and result.json; made if it is missing."""
        return self._folder("cells", _safe(cell, "cell id"))

    def device_folder(self, device: str) -> Path:
        """Folder of a device's log.txt, facts and precision; made if it is missing."""
        return self._folder("devices", _safe(device, "device id"))

    def _folder(self, kind: str, name: str) -> Path:
        path = self.folder / kind / name
        if not path.is_dir():
            try:
                with disk_errors(path):
                    path.mkdir(parents=True, exist_ok=True)
            except InvalidInput:
                # A run on a read-only disk can still be judged and read; whoever writes here meets the error then.
                return path
        return path

    def _device_files(self, name: str) -> list[Path]:
        return sorted((self.folder / "devices").glob(f"[!.]*/{name}"))

    def _write(self, path: Path, value: Any) -> None:
        with disk_errors(path):
            write_whole(path, to_json(value, indent=2))

    def _read(self, path: Path, kind: type[T]) -> T | None:
        try:
            return from_json(path.read_bytes(), kind)
        except (OSError, msgspec.DecodeError) as e:
            self._damaged(f"{path}: cannot be read, it counts as missing ({e})")
            return None

    def _damaged(self, sentence: str) -> None:
        if sentence not in self.damage:
            self.damage.append(sentence)


def _mend(fd: int) -> None:
    """End the journal with a newline, so that no line glues to it: complete a whole last line, cut a torn one."""
    size = os.fstat(fd).st_size
    if not size or os.pread(fd, 1, size - 1) == b"\n":
        return
    tail = b""
    start = size
    while start and b"\n" not in tail:
        step = min(start, 1 << 16)
        start -= step
        tail = os.pread(fd, step, start) + tail
    last = tail[tail.rfind(b"\n") + 1 :]
    try:
        from_json(last, Outcome)
    except msgspec.DecodeError:
        os.ftruncate(fd, size - len(last))
    else:
        os.write(fd, b"\n")
    os.fsync(fd)
