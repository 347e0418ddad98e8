"""inventory.yaml: what is accepted, and that every problem is told at once with its line and a cure."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from farm.defaults import Limits
from farm.errors import InvalidInput, Problem
from farm.inventory import DeviceOptions, Host, default_inventory, load_inventory, select_devices
from farm.plan import Known, PlannedDevice
from farm.yaml_lines import MAX_BYTES, MAX_DEPTH, MAX_VALUES, read_yaml

ROOT = Path(__file__).resolve().parents[1]

LAB = """\
devices:
- &software
  id: llvmpipe
  transport: local
  env: {VK_ICD_FILENAMES: /icd/lvp.json}
  profile: llvmpipe
  tags: [fp16, software]
- <<: *software
  id: swiftshader
  profile: swiftshader
  env: {VK_ICD_FILENAMES: /icd/ss.json}
  tags: [software]
- id: pixel-10
  transport: adb
  serial: "0123456"
  via: lab-mac
  lock: labtool lock 'pixel 10'
  usb_reset: [uhubctl, -a, cycle, -p, "3"]
- {id: mini, transport: ssh, host: "me@mac-mini.local:2222"}
hosts:
- {id: lab-mac, ssh: lab-mac, adb: true, tags: [rack1]}
models:
- "nets/*.tflite"
- path: nets/b.tflite
  kind: {mask: mask}
  inputs: data.npz
  input_shapes: {in0: [1, 8]}
  expect: {mine: pass, delegation: full, faster_than: cpu}
configs:
  mine: {accelerator: gpu, precision: fp32, gpu_options: ["priority = 2"]}
known:
- {model: "b*", config: gpu, verdict: fail, reason: SILENT_ZERO_VECTOR, until: 2031-12-31, link: "owner/repo#1"}
limits: {seed: 7, gpu_timeout_s: 60}
nightly:
  models: ["*"]
  configs: [mine, gpu]
  repeats: 2
  time_budget_s: 3600
  coverage: {families: [mali]}
  quarantine: {after_failures: 5}
  explain: true
store: {root: results, budget_bytes: 1073741824}
mqtt: {host: broker, tls: true, password_env: FARM_MQTT_PASSWORD}
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "nets").mkdir()
    for name in ("a", "b"):
        (tmp_path / "nets" / f"{name}.tflite").write_bytes(b"not read here")
    (tmp_path / "data.npz").write_bytes(b"not read here")
    path = tmp_path / "inventory.yaml"
    path.write_text(LAB)
    return path


def refused(folder: Path, text: str | bytes) -> list[Problem]:
    path = folder / "inventory.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InvalidInput) as e:
        load_inventory(path)
    assert e.value.exit_code == 2
    assert all(p.file == str(path) for p in e.value.problems)
    return list(e.value.problems)


def problems_of(path: Path) -> tuple[Problem, ...]:
    """What is wrong with an inventory that may be right; any other exception is a fault of the loader."""
    try:
        load_inventory(path)
    except InvalidInput as e:
        return e.problems
    return ()


def one(folder: Path, text: str | bytes) -> Problem:
    problems = refused(folder, text)
    assert len(problems) == 1, "\n".join(map(str, problems))
    return problems[0]


def test_a_whole_lab_is_read(lab: Path) -> None:
    inventory = load_inventory(lab)
    assert [d.id for d in inventory.devices] == ["llvmpipe", "swiftshader", "pixel-10", "mini"]
    assert inventory.devices[1] == PlannedDevice(
        id="swiftshader",
        transport="local",
        env={"VK_ICD_FILENAMES": "/icd/ss.json"},
        profile="swiftshader",
        tags=("software",),
    )
    assert {"serial": "0123456", "via": "lab-mac"}.items() <= inventory.devices[2].address.items()
    assert inventory.devices[3].address == {"host": "me@mac-mini.local:2222"}
    assert inventory.options == {
        "pixel-10": DeviceOptions(lock=("labtool", "lock", "pixel 10"), usb_reset=("uhubctl", "-a", "cycle", "-p", "3"))
    }
    assert inventory.hosts == (Host(id="lab-mac", ssh="lab-mac", adb="127.0.0.1:5037", tags=("rack1",)),)
    assert inventory.known == (
        Known(
            model="b*",
            config="gpu",
            verdict="fail",
            reason="SILENT_ZERO_VECTOR",
            until="2031-12-31",
            link="owner/repo#1",
        ),
    )
    assert inventory.configs["mine"].precision == "fp32"
    assert inventory.configs["mine"].gpu_options == ("priority = 2",)
    assert inventory.with_limits(Limits(repeats=9)) == Limits(repeats=9, seed=7, gpu_timeout_s=60.0)
    assert inventory.nightly is not None
    assert inventory.nightly.quarantine_after_failures == 5
    assert inventory.nightly.coverage_families == ("mali",)
    assert inventory.store is not None
    assert inventory.store.root == lab.parent / "results"
    assert inventory.mqtt is not None
    assert inventory.mqtt.password_env == "FARM_MQTT_PASSWORD"
    assert inventory.path == lab
    assert inventory.sha256 == hashlib.sha256(LAB.encode()).hexdigest()


def test_models_are_relative_to_the_inventory_and_an_entry_wins_over_a_glob(lab: Path) -> None:
    models = load_inventory(lab).models
    assert [m.path for m in models] == [lab.parent / "nets/a.tflite", lab.parent / "nets/b.tflite"]
    plain, special = models
    assert plain.named_at == "inventory.yaml:23"
    assert (plain.spec.kinds, plain.inputs) == ({}, ())
    assert special.named_at == "inventory.yaml:24"
    assert special.spec.kinds == {"mask": "mask"}
    assert special.spec.expect == {"mine": "pass", "delegation": "full", "faster_than": "cpu"}
    assert special.spec.source == "inventory.yaml:24"
    assert special.inputs == (lab.parent / "data.npz",)
    assert special.input_shapes == {"in0": (1, 8)}


def test_an_entry_wins_over_a_glob_whichever_stands_first(lab: Path) -> None:
    lab.write_text('models: [{path: nets/b.tflite, kind: {o: mask}}, "nets/*.tflite"]\n')
    assert [(m.path.name, m.spec.kinds) for m in load_inventory(lab).models] == [
        ("b.tflite", {"o": "mask"}),
        ("a.tflite", {}),
    ]


@pytest.mark.parametrize("value", ['"5"', "true", "5.0"])
def test_values_of_another_type_are_not_converted(tmp_path: Path, value: str) -> None:
    assert "must be a whole number" in one(tmp_path, f"limits: {{seed: {value}}}").message


def test_globs_reach_into_folders(lab: Path) -> None:
    lab.write_text('models: ["**/*.tflite"]\n')
    assert [m.path.name for m in load_inventory(lab).models] == ["a.tflite", "b.tflite"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "m[1].tflite").write_bytes(b"x")
    (tmp_path / "inventory.yaml").write_text('models: ["m[1].tflite"]\n')
    assert [m.path.name for m in load_inventory(tmp_path / "inventory.yaml").models] == ["m[1].tflite"]


def test_every_problem_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    text = """\
devices:
- id: pixel
  transport: adb
  serial: 0123456
- {id: "../etc", transport: local}
- {id: tv, transport: abd}
- {id: mac, transport: ssh}
- {id: MAC, transport: local, serail: x, env: {A: 3, "B C": x}}
- {id: hub, transport: adb, serial: s, via: nowhere, profile: malli}
models:
- missing.tflite
- "*.tflite"
known:
- {verdict: crash}
- {verdict: fail, until: 2026-13-01}
nightly: {repeats: 0, configs: [gpux]}
limits: {seed: 1.5, repeets: 2}
mqtt: {host: x, password: geheim}
store: [a]
configs:
  gpu: {accelerator: gpu}
  mine: {accelerator: cpu, precision: fp32}
devices: []
extra: 1
"""
    problems = refused(tmp_path, text)
    told = {(p.line, p.message.split(" (")[0][:46]) for p in problems}
    expected = {
        (4, "'serial' must be text, not a number"),
        (5, "'id' must be an id, not '../etc'"),
        (6, "unknown transport 'abd'"),
        (7, "device 'mac': transport 'ssh' needs a 'host'"),
        (8, "the id 'MAC' is given twice"),
        (8, "unknown key 'serail'"),
        (8, "'A' must be text, not a number"),
        (8, "'B C' is no name of an environment variable"),
        (9, "unknown profile 'malli'"),
        (11, "the model 'missing.tflite' does not exist"),
        (12, "no file matches '*.tflite'"),
        (14, "unknown verdict 'crash'"),
        (15, "'2026-13-01' is no valid date"),
        (16, "'repeats' must be 1 or more, not 0"),
        (17, "'seed' must be a whole number, not a number"),
        (17, "unknown key 'repeets'"),
        (18, "'mqtt' must not hold a password"),
        (19, "'store' must be a mapping, not a list"),
        (21, "the config 'gpu' is built in and cannot be red"),
        (22, "'precision' means nothing for accelerator 'cpu"),
        (23, "the key 'devices' is given twice"),
        (24, "unknown key 'extra'"),
    }
    assert {(line, message) for line, message in told if line != 19} == {e for e in expected if e[0] != 19}
    assert any(p.line == 19 and "'store' must be a mapping" in p.message for p in problems)
    assert "geheim" not in "\n".join(map(str, problems))
    assert [p.line for p in problems] == sorted(p.line or 0 for p in problems)


@pytest.mark.parametrize(
    ("text", "message", "cure"),
    [
        ("devices: [{id: a, transport: adb, serial: 0123456}]", "a number (0123456)", 'quote it: "0123456"'),
        ("devices: [{id: a, transport: adb, serial: 1e10}]", None, None),  # YAML 1.1: text, since the dot is missing
        ("devices: [{id: a, transport: adb, serial: 1.5e+3}]", "a number (1.5e+3)", 'quote it: "1.5e+3"'),
        ("devices: [{id: a, transport: adb, serial: 12:30:45}]", "a number (12:30:45)", 'quote it: "12:30:45"'),
        ("devices: [{id: a, transport: adb, serial: 0x1F}]", "a number (0x1F)", 'quote it: "0x1F"'),
        ("devices: [{id: a, transport: adb, serial: yes}]", "true/false (yes)", 'quote it: "yes"'),
        ("devices: [{id: a, transport: adb, serial: 2024-01-01}]", "a date (2024-01-01)", 'quote it: "2024-01-01"'),
        ("devices: [{id: 007, transport: local}]", "'id' must be text", 'quote it: "007"'),
    ],
)
def test_serials_that_yaml_reads_as_something_else_are_refused_with_the_cure(
    tmp_path: Path, text: str, message: str | None, cure: str | None
) -> None:
    if message is None or cure is None:
        (tmp_path / "inventory.yaml").write_text(text)
        assert load_inventory(tmp_path / "inventory.yaml").devices[0].address == {"serial": "1e10"}
        return
    problem = one(tmp_path, text)
    assert message in problem.message
    assert problem.cure == cure


@pytest.mark.parametrize(
    "serial", ["adb-XX (2)._adb-tls-connect._tcp", "192.168.1.7:5555", "a b", "x'; rm -rf /;'", "ünï"]
)
def test_odd_serials_are_kept_as_they_are(tmp_path: Path, serial: str) -> None:
    (tmp_path / "inventory.yaml").write_text(
        yaml.safe_dump({"devices": [{"id": "a", "transport": "adb", "serial": serial}]})
    )
    assert load_inventory(tmp_path / "inventory.yaml").devices[0].address["serial"] == serial


@pytest.mark.parametrize(
    "name",
    ["", "..", ".a", "-a", "a/b", "a b", "a\n", "a\0", "a" * 65, "ä", "a;b", "$(x)", "-oProxyCommand=x", "a\u202eb"],
)
def test_hostile_ids_are_refused(tmp_path: Path, name: str) -> None:
    problem = one(tmp_path, json.dumps({"devices": [{"id": name, "transport": "local"}]}))
    assert problem.message.startswith("'id' must be an id, not ")
    assert "\n" not in problem.message
    assert "\0" not in problem.message


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "a;b", "me@-x", "me@", "h:0", "h:99999", "a\nb", "$(x)"])
def test_hostile_ssh_hosts_are_refused(tmp_path: Path, host: str) -> None:
    one(tmp_path, json.dumps({"devices": [{"id": "a", "transport": "ssh", "host": host}]}))


@pytest.mark.parametrize("host", ["mac", "me@mac.local", "me@10.0.0.1:2222", "[::1]:22", "lab_mac"])
def test_ssh_hosts_are_accepted(tmp_path: Path, host: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(json.dumps({"devices": [{"id": "a", "transport": "ssh", "host": host}]}))
    assert load_inventory(path).devices[0].address == {"host": host}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this inventory is empty"),
        ("# nothing\n", "this inventory is empty"),
        ("- id: a\n", "this inventory must be a mapping (key: value) at the top, not a list"),
        ("hello\n", "this inventory must be a mapping (key: value) at the top, not a single value"),
        ("devices: [\n", "this inventory is not valid YAML"),
        ("devices:\n\t- id: a\n", "this inventory is not valid YAML: a tab is used to indent"),
        (b"devices: \xff\n", "this inventory is not UTF-8 text"),
        (b"\x00\x01\x02\x03", "this inventory is not valid YAML: it holds characters that text files do not have"),
        ("a: *nobody\n", "the alias *nobody stands before its anchor &nobody, or has none"),
        ("a: &a [*a]\n", "the alias *a refers to a value that contains it"),
        ("limits: {}\n---\nlimits: {}\n", "this inventory holds more than one YAML document"),
    ],
)
def test_what_is_no_inventory_gets_one_sentence(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert one(tmp_path, text).message.startswith(message)


def test_a_missing_file_and_a_folder_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no such inventory"):
        load_inventory(tmp_path / "none.yaml")
    with pytest.raises(InvalidInput, match="this is a folder, not a file"):
        load_inventory(tmp_path)


def test_tags_that_make_objects_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    problem = one(tmp_path, "limits: !!python/object/apply:os.system ['touch pwned']\n")
    assert "is not allowed here" in problem.message
    assert not (tmp_path / "pwned").exists()


def _laughs() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{n}: &{n} [{', '.join(['*' + p] * 10)}]" for p, n in zip("abcdefgh", "bcdefghi", strict=True)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_laughs(), f"more than {MAX_VALUES} values"),
        ("a: " + "[" * 200 + "]" * 200, f"nested more than {MAX_DEPTH} deep"),
        ("a: " + "[" * 100_000, "nest"),
        ("\n".join(f"{'  ' * i}a:" for i in range(600)), "nest"),
        ("a: " + "9" * 5000, "no valid int"),
        ("#" + "x" * MAX_BYTES, "larger than"),
    ],
)
def test_hostile_yaml_is_refused_in_bounded_time(tmp_path: Path, text: str, message: str) -> None:
    start = time.monotonic()
    problems = refused(tmp_path, text)
    assert time.monotonic() - start < 5
    assert message in str(problems[0])


def test_aliases_do_not_deepen_nesting_past_the_bound(tmp_path: Path) -> None:
    half = MAX_DEPTH // 2 + 2
    text = f"a: &a {'[' * half}{']' * half}\nb: {'[' * half}*a{']' * half}\n"
    assert "nested more than" in str(refused(tmp_path, text)[0])


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_any_bytes_give_an_inventory_or_refusal(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(data)
    assert all("\n" not in str(p) for p in problems_of(path))


_words = st.sampled_from(
    ["devices", "hosts", "models", "configs", "known", "limits", "id", "transport", "local", "adb", "path", "verdict"]
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(_words, _values, max_size=5))
def test_any_structure_gives_an_inventory_or_refusal_with_lines(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "structure.yaml"
    path.write_text(yaml.safe_dump(data))
    assert all(p.line for p in problems_of(path) if "is empty" not in p.message)


def test_a_key_given_twice_names_both_lines(tmp_path: Path) -> None:
    problem = one(tmp_path, "limits: {seed: 1}\nmodels: []\nlimits: {seed: 2}\n")
    assert (problem.line, problem.message) == (3, "the key 'limits' is given twice (first on line 1)")


def test_keys_that_are_no_text_are_refused(tmp_path: Path) -> None:
    problems = refused(tmp_path, "on: 1\n2: x\n")
    assert [p.cure for p in problems] == ['quote it: "on"', 'quote it: "2"']


def test_unknown_keys_get_the_nearest_and_the_list_at_every_depth(tmp_path: Path) -> None:
    text = "nightly: {coverage: {familes: [a]}}\nconfigs:\n  mine: {accelerator: gpu, precison: fp32}\nmodel: []\n"
    cures = [str(p.cure) for p in refused(tmp_path, text)]
    assert cures[0] == "did you mean 'families'? known: models, families"
    assert cures[1].startswith("did you mean 'precision'? known: accelerator, precision, backend")
    assert cures[2].startswith("did you mean 'models'? known: devices, hosts, models")


def test_a_phone_listed_twice_is_refused_unless_its_server_differs(tmp_path: Path) -> None:
    twice = "devices:\n- {id: a, transport: adb, serial: s}\n- {id: b, transport: adb, serial: s"
    assert "is listed twice (first on line 2)" in one(tmp_path, twice + "}\n").message
    (tmp_path / "inventory.yaml").write_text(twice + ", adb_server: '10.0.0.2:5037'}\n")
    assert len(load_inventory(tmp_path / "inventory.yaml").devices) == 2


def test_via_must_name_a_host(tmp_path: Path) -> None:
    text = "devices: [{id: a, transport: adb, serial: s, via: hob}]\nhosts: [{id: hub, ssh: x}]\n"
    assert one(tmp_path, text).cure == "did you mean 'hub'? known: hub"


def test_a_model_listed_twice_is_refused(lab: Path) -> None:
    lab.write_text("models: [nets/a.tflite, {path: ./nets/a.tflite, kind: {o: mask}}]\n")
    with pytest.raises(InvalidInput, match="is listed twice"):
        load_inventory(lab)


def test_problems_of_specs_beside_the_models_are_told_with_those_of_the_inventory(lab: Path) -> None:
    (lab.parent / "nets" / "a.farm.yaml").write_text("kind:\n  out: masc\n")
    lab.write_text("models: [nets/a.tflite, nets/none.tflite]\n")
    with pytest.raises(InvalidInput) as e:
        load_inventory(lab)
    assert [(Path(str(p.file)).name, p.line) for p in e.value.problems] == [("inventory.yaml", 1), ("a.farm.yaml", 2)]


def test_an_inventory_without_devices_means_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text("limits: {}\n")
    assert (
        load_inventory(path).devices == default_inventory().devices == (PlannedDevice(id="local", transport="local"),)
    )
    path.write_text("hosts: [{id: h, ssh: x}]\n")
    assert load_inventory(path).devices == ()


def test_devices_are_selected_by_id_glob_and_tag_in_the_inventorys_order(lab: Path) -> None:
    inventory = load_inventory(lab)

    def ids(*patterns: str) -> list[str]:
        return [d.id for d in select_devices(inventory, patterns)]

    assert ids() == ["llvmpipe", "swiftshader", "pixel-10", "mini"]
    assert ids("mini", "llvmpipe") == ["llvmpipe", "mini"]
    assert ids("tag:software") == ["llvmpipe", "swiftshader"]
    assert ids("*i*", "tag:fp*") == ["llvmpipe", "swiftshader", "pixel-10", "mini"]
    assert ids("pixel-*,mini") == ["pixel-10", "mini"]
    with pytest.raises(InvalidInput) as e:
        ids("mini", "pixle", "tag:none")
    assert [p.message for p in e.value.problems] == [
        "no device is named by 'pixle'",
        "no device is named by 'tag:none'",
    ]
    assert e.value.problems[0].cure == "devices: llvmpipe, swiftshader, pixel-10, mini; tags: fp16, software"


def test_the_default_inventory_costs_no_pydantic() -> None:
    code = (
        "import sys; from farm.inventory import default_inventory, select_devices;"
        "from farm.configs import select_configs;"
        "select_devices(default_inventory()); select_configs(); from farm.specs import model_requests;"
        "model_requests(['none.tflite']); from farm.profiles import load_profiles; load_profiles();"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_the_shipped_inventory_is_this_machine() -> None:
    assert read_yaml(ROOT / "inventory.yaml", "inventory").data["devices"] == [{"id": "local", "transport": "local"}]


def test_lines_are_those_of_the_file_whatever_its_newlines(tmp_path: Path) -> None:
    for newline in ("\n", "\r\n"):
        text = newline.join(["limits:", "  seed: 1", "  repeets: 2", ""])
        assert one(tmp_path, text).line == 3
    assert one(tmp_path, b"\xef\xbb\xbflimits:\n  repeets: 2\n").line == 2


def test_words_of_the_door_are_those_of_the_farm() -> None:
    from farm.doors.inventory import REASONS, LimitsDoor, transports
    from farm.doors.spec import KINDS, LIMITS, VERDICTS
    from farm.judge.bands import BANDS
    from farm.judge.verdict import COUNTS
    from farm.outcome import FailureCode

    assert set(VERDICTS) == set(COUNTS)
    assert set(get_args(FailureCode)) <= set(REASONS)
    assert set(LimitsDoor.model_fields) == set(Limits.__dataclass_fields__)
    assert {"adb", "local", "ssh"} <= set(transports())
    rows = {kind.removesuffix("-fp32").removesuffix("-fp16") for kind in BANDS}
    for kind in rows:
        names = {name for row, limits in BANDS.items() if row.startswith(kind) for name in limits}
        assert names == set(LIMITS[kind]), kind
    assert set(KINDS) == set(LIMITS) == rows
    assert not {"base", "__init__"} & set(transports())


def _schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "farm" / "schemas" / f"{name}.schema.json").read_text("utf-8"))
    return loaded


def test_schemas_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "export_schemas.py", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_schema_accepts_what_the_loader_accepts(lab: Path) -> None:
    load_inventory(lab)
    data = json.loads(json.dumps(read_yaml(lab, "inventory").data, default=str))  # editors see dates as text
    jsonschema.validate(data, _schema("inventory"))


@pytest.mark.parametrize(
    "data",
    [
        {"devices": [{"id": "../x", "transport": "local"}]},
        {"devices": [{"id": "x", "transport": "abd"}]},
        {"devices": [{"id": "x", "transport": "adb", "serial": 5}]},
        {"known": [{"verdict": "crash"}]},
        {"known": [{}]},
        {"extra": 1},
        {"models": [{"path": "a", "kind": {"o": "masc"}}]},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(tmp_path: Path, data: dict[str, Any]) -> None:
    refused(tmp_path, json.dumps(data))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, _schema("inventory"))


def test_messages_hold_no_words_of_the_library(tmp_path: Path) -> None:
    text = """\
devices: [{id: 1, transport: [x], env: [a], tags: x, lock: "a 'b", adb_server: h}]
hosts: [{id: h}]
models: [3, {kind: {}}]
configs: {"a b": {accelerator: tpu, flags: -1, diagnostic: 1}}
nightly: x
mqtt: {host: h, port: 0, topic: "a/#"}
limits: {min_norm: .nan, min_cosine_similarity: 2}
"""
    told = "\n".join(map(str, refused(tmp_path, text)))
    assert not re.search(r"[Ii]nput should|pydantic|model_type|Door|valid (string|integer)", told), told
