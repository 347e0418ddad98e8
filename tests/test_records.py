"""Qualification records: everything bound, every changed byte seen and named, drift told item by item."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path

import jsonschema
import msgspec
import pytest

from farm import codec
from farm.environment import Environment, current_environment, drift, joined
from farm.errors import InvalidInput
from farm.record_check import verify
from farm.records import SECTIONS, Record, leaves, make_records, record_bytes, schema, sealed
from farm.store import RunStore
from farm.sweep import sweep
from tests import graphs

CHECKOUT = Path(__file__).resolve().parents[1]
TODAY = date(2025, 1, 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    model = graphs.write(folder, "fc", graphs.fc_chain())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARM_CACHE_DIR", str(folder / "cache"))
        return sweep([model], configs=["cpu"], out=folder / "runs").run_folder


@pytest.fixture(scope="module")
def record(run: Path) -> Record:
    return next(r for r in make_records(RunStore.open(run), today=TODAY) if r.about.config == "cpu")


@pytest.fixture
def file(record: Record, tmp_path: Path) -> Path:
    path = tmp_path / "record.json"
    path.write_bytes(record_bytes(record))
    return path


def changed(file: Path, data: bytes) -> tuple[str, ...]:
    file.write_bytes(data)
    try:
        return verify(file).changed
    except InvalidInput as e:
        return (f"REFUSED {e}",)


def test_every_cell_gets_a_record_that_names_all_it_rests_on(run: Path, record: Record) -> None:
    made = make_records(RunStore.open(run), today=TODAY)
    assert {r.about.config for r in made} == {"cpu", "cpu-ref", "cpu-fp16"}
    model = next(p for p in run.parent.parent.glob("*.tflite"))
    assert re.fullmatch(r"[0-9a-f]{64}", record.model.sha256)
    assert record.model.path == str(model)
    assert [i.sha256 for i in record.inputs]
    assert record.verdict.verdict == "pass"
    assert record.metrics[0].values["snr_db"] > 80
    assert record.metrics[0].limits["pass_snr_db"]
    assert any(name.startswith("libLiteRt") for name in record.runtime.files)
    assert re.fullmatch(r"[0-9a-f]{64}", record.agent.sha256)
    assert record.device.facts["platform"] == record.agent.platform
    assert "boot_id" not in record.device.facts
    assert record.environment is not None
    assert record.environment.packages["numpy"] == __import__("numpy").__version__
    assert record.outputs.sha256
    assert set(record.outputs.sha256) == set(record.reference.first)


def test_one_cell_can_be_asked_for_and_an_unknown_one_is_refused(run: Path) -> None:
    store = RunStore.open(run)
    (one,) = make_records(store, ["local--fc--cpu"], today=TODAY)
    assert one.about.cell == "local--fc--cpu"
    with pytest.raises(InvalidInput, match="no cell 'nope'"):
        make_records(store, ["nope"], today=TODAY)


def test_the_same_run_gives_the_same_bytes(run: Path, record: Record) -> None:
    again = next(r for r in make_records(RunStore.open(run), today=TODAY) if r.about.config == "cpu")
    assert record_bytes(again) == record_bytes(record)


def test_an_untouched_record_is_intact(file: Path) -> None:
    seen = verify(file)
    assert seen.intact
    assert seen.drift == ()
    assert seen.verdict == "pass"


def test_every_changed_value_is_named(record: Record, file: Path) -> None:
    plain = msgspec.json.decode(record_bytes(record))
    for path, value in list(leaves(plain)):
        damaged = json.loads(json.dumps(plain))
        keys = (
            re.findall(r"\[(\d+)\]|\.?([^.\[]+)", path)
            if not path.startswith(("device.facts", "runtime.files", "reference.", "outputs.sha256", "bands."))
            else None
        )
        if keys is None:
            continue  # keys with dots in them; the byte test below covers those
        holder = damaged
        steps: list[str | int] = [int(number) if number else name for number, name in keys]
        for step in steps[:-1]:
            holder = holder[step]
        holder[steps[-1]] = "something else" if value != "something else" else "another"
        told = changed(file, codec.to_json(damaged, indent=2))
        assert told == (f"{path}: the value is not what was recorded",)


def line_fields(text: str) -> list[str]:
    """The innermost key of every line of a canonical record, or its parents' for list elements and brackets."""
    stack: list[str] = []
    names = []
    for line in text.split("\n"):
        found = re.match(r'\s*"((?:[^"\\]|\\.)*)": ', line)
        body = line.strip().rstrip(",")
        if body in ("}", "]"):
            names.append(stack.pop() if stack else "")
            continue
        name = found[1] if found else (stack[-1] if stack else "")
        names.append(name)
        if body.endswith(("{", "[")):
            stack.append(name)
    return names


@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_every_changed_byte_is_seen_and_its_field_named(file: Path, step: int) -> None:
    data = file.read_bytes()
    fields = line_fields(data.decode())
    rng = random.Random(step)
    at = 0
    for position in range(0, len(data), step):
        value = rng.choice([b for b in range(256) if b != data[position]])
        damaged = data[:position] + bytes([value]) + data[position + 1 :]
        told = changed(file, damaged)
        assert told, f"byte {position}: {data[position]:#x} → {value:#x} went unseen"
        line = data[:position].count(b"\n")
        near = {fields[n] for n in (line, line + 1) if n < len(fields)}
        words = " ".join(told)
        named = any(name and name in words for name in near) or "outer brackets" in words
        assert named, f"byte {position} in {near}: {told}"
        at += 1
    assert at > 500


def test_bytes_of_values_are_named_by_their_field(record: Record, file: Path) -> None:
    data = record_bytes(record)
    for field, old in (
        ("model.sha256", record.model.sha256),
        ("agent.sha256", record.agent.sha256),
        ("device.fingerprint", record.device.fingerprint),
        ("verdict.verdict", '"pass"'),
    ):
        start = data.rindex(old.encode()) if field == "verdict.verdict" else data.index(old.encode())
        flipped = bytes([data[start + 1] ^ 1])
        told = changed(file, data[: start + 1] + flipped + data[start + 2 :])
        assert any(t.startswith(f"{field}:") for t in told), (field, told)


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (lambda d: d["digests"].update(model="0" * 64), "digests.model: the digest was changed"),
        (lambda d: d.update(plan_digest="0" * 64), "plan_digest: was changed"),
        (lambda d: d["seals"].update({"model.sha256": "0" * 16}), "seals.model.sha256: the seal was changed"),
        (lambda d: d["model"].pop("sha256"), "model.sha256: is missing"),
        (lambda d: d["model"].update(extra=1), "model.extra: was added"),
        (lambda d: d.pop("limits"), "limits: is missing"),
        (lambda d: d.update(more=1), "more: was added"),
        (lambda d: d["seals"].pop("model.sha256"), "seals.model.sha256"),
        (lambda d: d.update(seals=[]), "seals: is not what it was"),
    ],
)
def test_what_seals_is_told_apart_from_what_is_sealed(
    record: Record, file: Path, what: Callable[[dict[str, object]], object], named: str
) -> None:
    plain = msgspec.json.decode(record_bytes(record))
    what(plain)
    told = changed(file, codec.to_json(plain, indent=2))
    assert len(told) == 1
    assert told[0].startswith(named)


def test_another_spelling_of_the_same_values_is_no_longer_the_record(record: Record, file: Path) -> None:
    plain = msgspec.json.decode(record_bytes(record))
    assert changed(file, json.dumps(plain, indent=2, sort_keys=True).encode())
    assert changed(file, record_bytes(record).replace(b'"kind": "farm', b'"kind": "\\u0066arm'))
    assert changed(file, record_bytes(record) + b" ")


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"{}", b"\xff\xfe", b"[1]", b'{"kind": 1}'):
        (tmp_path / "x.json").write_bytes(data)
        with pytest.raises(InvalidInput, match="no qualification record"):
            verify(tmp_path / "x.json")
    with pytest.raises(InvalidInput, match="cannot be read"):
        verify(tmp_path / "absent.json")


def test_drift_is_listed_item_by_item(record: Record, file: Path) -> None:
    assert record.environment is not None
    packages = {**record.environment.packages, "numpy": "0.0.1", "gone": "1.0"}
    packages.pop("click")
    other = dataclasses.replace(record.environment, python="CPython 2.7.18", packages=packages)
    bands = dataclasses.replace(
        record.bands, shipped={**record.bands.shipped, "mask": {"pass_max_abs": 0.5, "fail_max_abs": 0.05}}
    )
    file.write_bytes(record_bytes(sealed(dataclasses.replace(record, environment=other, bands=bands))))
    seen = verify(file)
    assert seen.intact
    told = {d.item: (d.recorded, d.now) for d in seen.drift}
    assert set(told) == {"python", "package numpy", "package gone", "package click", "band mask.pass_max_abs"}
    assert told["package gone"] == ("1.0", None)
    assert told["package click"][0] is None
    assert told["band mask.pass_max_abs"] == ("0.5", "0.01")


def test_against_now_looks_at_model_runtime_and_agent(
    record: Record,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setenv("FARM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "records-cache"))
    assert {d.item for d in verify(file, against_now=True).drift} == set()
    model = tmp_path / "m.tflite"
    model.write_bytes(b"other")
    files = {**record.runtime.files, "libLiteRt.so": "0" * 64}
    file.write_bytes(
        record_bytes(
            sealed(
                dataclasses.replace(
                    record,
                    model=dataclasses.replace(record.model, path=str(model)),
                    runtime=dataclasses.replace(record.runtime, files=files),
                    agent=dataclasses.replace(record.agent, version="0", sha256="0" * 64),
                )
            )
        )
    )
    items = {d.item for d in verify(file, against_now=True).drift}
    assert items == {
        f"model {model}",
        f"runtime {record.runtime.name}, file libLiteRt.so",
        "agent version",
        "agent binary",
    }


def test_the_shipped_schema_is_fresh_and_records_fit_it(record: Record) -> None:
    shipped = CHECKOUT / "farm" / "schemas" / "record.schema.json"
    assert json.loads(shipped.read_bytes()) == json.loads(codec.to_json(schema()))
    jsonschema.validate(json.loads(record_bytes(record)), json.loads(shipped.read_bytes()))


def test_the_page_documents_every_field() -> None:
    text = (CHECKOUT / "docs" / "records.md").read_text()
    names = {f.name for f in dataclasses.fields(Record)}
    assert set(SECTIONS) <= names
    assert not [name for name in names if f"`{name}`" not in text]


def test_a_resumed_run_says_both_environments() -> None:
    one = Environment(python="CPython 3.11.4", os="A", kernel="k", machine="m", packages={"numpy": "1"})
    other = dataclasses.replace(one, packages={"numpy": "2", "new": "3"})
    both = joined(one, other)
    assert both.packages == {"new": "absent, after a resume 3", "numpy": "1, after a resume 2"}
    assert joined(both, other) == both
    assert both.python == one.python


def test_environments_that_are_equal_do_not_drift() -> None:
    now = current_environment()
    assert drift(now, now) == ()
    assert "pytest" in now.packages
