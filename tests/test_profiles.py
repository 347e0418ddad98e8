"""Device profiles: the shipped ones are whole, sourced and tell families apart; others are checked at the door."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from farm.configs import CONFIGS
from farm.errors import InvalidInput
from farm.profiles import Profile, load_profiles, match_profile

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "device_profiles"

SMALL: dict[str, Any] = {
    "title": "A GPU",
    "vendor": {"value": "acme", "source": "acme/docs#1"},
    "match": [{"gpu": "acme"}],
    "examples": [{"gpu": "Acme 1"}],
    "configs": {"value": ["cpu", "gpu"], "source": "acme/docs#1"},
}


@pytest.fixture(scope="module")
def shipped() -> tuple[Profile, ...]:
    return load_profiles(check=True)


def folder_of(tmp_path: Path, **profiles: Any) -> Path:
    for name, data in profiles.items():
        (tmp_path / f"{name}.yaml").write_text(data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False))
    return tmp_path


def test_the_families_of_the_design_are_all_there(shipped: tuple[Profile, ...]) -> None:
    assert {p.id for p in shipped} >= {
        "llvmpipe", "swiftshader", "powervr", "adreno-6xx", "adreno-7xx", "adreno-8xx", "mali", "xclipse",
        "apple-metal", "nvidia", "intel", "cpu-only",
    }  # fmt: skip


def test_the_unchecked_way_gives_the_same_profiles(shipped: tuple[Profile, ...]) -> None:
    assert load_profiles() == shipped


def test_each_shipped_example_finds_its_own_profile(shipped: tuple[Profile, ...]) -> None:
    found = {(p.id, str(e)): getattr(match_profile(e, shipped), "id", None) for p in shipped for e in p.examples}
    assert found == {key: key[0] for key in found}


@pytest.mark.parametrize(
    ("facts", "profile"),
    [
        ({"gpu": "Adreno (TM) 730", "platform": "android-arm64"}, "adreno-7xx"),
        ({"gpus": ["Adreno (TM) 619"], "platform": "android-arm64"}, "adreno-6xx"),
        ({"gpu": "Adreno830", "platform": "android-arm64"}, "adreno-8xx"),
        ({"gpu": "Adreno (TM) 540", "platform": "android-arm64"}, None),
        ({"gpu": "Adreno (TM) 6500", "platform": "android-arm64"}, None),
        ({"gpu": "PowerVR D-Series DXT-48-1536", "platform": "android-arm64"}, "powervr"),
        ({"gpu": "ANGLE (Samsung Xclipse 530)", "platform": "android-arm64"}, "xclipse"),
        ({"gpu": "Mali-G78", "platform": "android-arm64"}, "mali"),
        ({"gpu": "Apple M2", "platform": "macos-arm64"}, "apple-metal"),
        ({"gpu": "Android Emulator OpenGL ES Translator (Apple M2)", "platform": "android-arm64"}, None),
        ({"gpu": "AMD Radeon RX 7900", "platform": "linux-x86_64"}, None),
        ({"platform": "linux-x86_64"}, "cpu-only"),
        ({"gpu": "", "gpus": [], "platform": "linux-x86_64"}, "cpu-only"),
        ({}, None),
    ],
)
def test_facts_find_the_family(shipped: tuple[Profile, ...], facts: dict[str, Any], profile: str | None) -> None:
    assert getattr(match_profile(facts, shipped), "id", None) == profile


def test_what_the_runtime_used_counts_more_than_what_the_machine_has(shipped: tuple[Profile, ...]) -> None:
    facts = {"adapter": "llvmpipe (LLVM 19.1.7, 256 bits)", "gpu": "NVIDIA H200", "gpus": ["NVIDIA H200"]}
    found = match_profile(facts, shipped)
    assert found is not None
    assert found.id == "llvmpipe"


def test_two_families_at_once_are_no_family(shipped: tuple[Profile, ...]) -> None:
    assert match_profile({"gpu": "Intel PCI 8086:7D55, NVIDIA GeForce RTX 4090"}, shipped) is None


def test_every_shipped_value_names_a_public_source_or_a_measurement() -> None:
    def sources(value: Any) -> list[str]:
        if isinstance(value, list):
            return [s for v in value for s in sources(v)]
        if not isinstance(value, dict):
            return []
        own = [value["source"]] if "source" in value else []
        own += [value["link"]] if "pattern" in value else []
        return own + [s for v in value.values() for s in sources(v)]

    thread = re.compile(r"https://\S+|[\w.-]+/[\w.-]+#\d+|measured[ :]|AOSP")
    for path in sorted(FOLDER.glob("*.yaml")):
        found = sources(yaml.safe_load(path.read_text("utf-8")))
        assert found, path.name
        assert [s for s in found if not thread.search(s)] == [], path.name


def test_shipped_profiles_speak_of_configs_there_are(shipped: tuple[Profile, ...]) -> None:
    for p in shipped:
        assert {*p.configs.value, *p.precision, *(c for i in p.known_issues for c in i.configs)} <= set(CONFIGS), p.id


def test_the_two_software_gpus_expect_what_the_canaries_measured(shipped: tuple[Profile, ...]) -> None:
    by_id = {p.id: {config: c.value for config, c in p.precision.items()} for p in shipped}
    assert by_id["llvmpipe"] == {"gpu": "fp16", "gpu-fp32": "fp32"}
    assert by_id["swiftshader"] == {"gpu": "fp32", "gpu-fp32": "fp32", "gpu-fp16": "fp16-storage"}


def test_phones_have_safety_limits(shipped: tuple[Profile, ...]) -> None:
    for p in shipped:
        if p.id.startswith(("adreno", "mali", "xclipse", "powervr")):
            assert p.safety.thermal_status is not None, p.id
            assert p.safety.battery_percent is not None, p.id


def test_the_schema_accepts_the_shipped_profiles() -> None:
    schema = json.loads((ROOT / "farm/schemas/profile.schema.json").read_text("utf-8"))
    for path in sorted(FOLDER.glob("*.yaml")):
        jsonschema.validate(yaml.safe_load(path.read_text("utf-8")), schema)


def test_a_folder_of_ones_own_is_checked_and_read(tmp_path: Path) -> None:
    data = {**SMALL, "bands": {"values": {"pass_snr_db": {"value": 30, "source": "lab"}}}}
    (profile,) = load_profiles(folder_of(tmp_path, acme=data))
    assert (profile.id, profile.title, profile.vendor.value) == ("acme", "A GPU", "acme")
    assert profile.band_overrides() == {"values": {"pass_snr_db": 30}}


def test_ties_are_refused_at_load_with_both_names(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path, acme=SMALL, acme2={**SMALL, "match": [{"gpu": "acme 1"}], "examples": [{"gpu": "acme 10"}]}
    )
    with pytest.raises(InvalidInput) as e:
        load_profiles(folder)
    assert [Path(str(p.file)).name for p in e.value.problems] == ["acme.yaml", "acme2.yaml"]
    assert all("is not this profile's alone" in p.message for p in e.value.problems)
    assert str(e.value.problems[0].cure).startswith("acme2 fits it at least as well")


def test_the_alternative_with_more_patterns_wins(tmp_path: Path) -> None:
    special = {
        **SMALL,
        "match": [{"gpu": "acme", "soc": "x1"}],
        "examples": [{"gpu": "Acme 1", "soc": "X1"}],
    }
    profiles = load_profiles(folder_of(tmp_path, acme=SMALL, special=special))
    assert getattr(match_profile({"gpu": "Acme 7", "soc": "X1"}, profiles), "id", None) == "special"
    assert getattr(match_profile({"gpu": "Acme 7", "soc": "X2"}, profiles), "id", None) == "acme"


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        ({"vendor": "acme"}, 2, "'vendor' must be a mapping (key: value), not text ('acme')"),
        ({"vendor": {"value": "acme"}}, 2, "'source' is missing in 'vendor'"),
        ({"match": [{"gpu": "("}]}, 6, "'gpu' is no regular expression"),
        ({"match": [{}]}, 6, "this alternative has no pattern"),
        ({"match": [{"gpo": "x"}]}, 6, "unknown key 'gpo'"),
        ({"examples": [{"gpu": "Other"}]}, 8, "the example {'gpu': 'Other'} fits no pattern of this profile"),
        ({"examples": [{"gpo": "Acme"}]}, 8, "unknown fact 'gpo'"),
        ({"configs": {"value": ["gpux"], "source": "s"}}, 11, "unknown config 'gpux'"),
        ({"title": 3}, 1, "'title' must be text, not a number (3)"),
        ({"known_issues": [{"title": "t", "link": "x", "pattern": "odd"}]}, None, "'link' must be a link, not 'x'"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_line(
    tmp_path: Path, change: dict[str, Any], line: int | None, message: str
) -> None:
    with pytest.raises(InvalidInput) as e:
        load_profiles(folder_of(tmp_path, acme={**SMALL, **change}))
    problem = e.value.problems[0]
    assert problem.message.startswith(message)
    assert line is None or problem.line == line


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no profile here"):
        load_profiles(tmp_path)


def test_hostile_facts_do_not_stall_matching(shipped: tuple[Profile, ...]) -> None:
    assert match_profile({"gpu": "adreno" * 100_000, "soc": "x" * 1_000_000}, shipped) is None
