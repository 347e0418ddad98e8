"""The agent's contract: PROTOCOL.md, agent_protocol.py and the C source agree; results are read with distrust."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.agent_protocol import (
    PROTOCOL,
    AgentResult,
    Job,
    OutputData,
    ResultRefused,
    RunData,
    TensorInfo,
    job_argv,
    job_file,
    read_result,
)
from farm.configs import CONFIGS
from farm.resources import resource_path

HASH = "a" * 64
OTHER = "b" * 64


def page() -> str:
    return (resource_path("agents") / "PROTOCOL.md").read_text("utf-8")


def source() -> str:
    return (resource_path("agents") / "litert_agent.c").read_text("utf-8")


def a_job(**changes: Any) -> Job:
    given = {
        "nonce": "n-1", "library": "/rt/libLiteRt.so", "runtime_dir": "/rt", "model": "/m.tflite", "out_dir": "/o",
        "result": "/r.json", "log": "/l.txt", "accelerators": ("gpu", "cpu"), "inputs": (("/a", "/b"), ("/c", "/d")),
        "shapes": ((1, 8), None), "gpu_options": ("priority = 2",), "steps": 0,
    }  # fmt: skip
    return Job(**(given | changes))


def a_result(**changes: Any) -> dict[str, Any]:
    """A success with one output whose second repeat differs, as the agent writes it."""
    tensor = {"index": 0, "name": "o", "dtype": "float32", "shape": [1, 4], "size_bytes": 16}
    output = {
        "index": 0, "sha256": HASH, "size_bytes": 16, "file": "0.0.0.raw", "shape": [1, 4],
        "repeat_sha256": [HASH, OTHER], "repeat_files": {"1": "0.0.0.r1.raw"},
    }  # fmt: skip
    run = {"set": 0, "step": 0, "outputs": [output], "latency_ms": [1.5], "run_ms": [1]}
    good = {
        "protocol": PROTOCOL, "agent_version": "1.0.0", "nonce": "n-1", "ok": True, "stage": "done",
        "outputs": [tensor], "runs": [run],
    }  # fmt: skip
    return good | changes


def read(value: Any, nonce: str = "n-1") -> AgentResult:
    return read_result(msgspec.json.encode(value), nonce)


# ---- the three twins ------------------------------------------------------------------------------------------------


def documented_keys() -> set[str]:
    table = page().split("## Keys")[1].split("\n## ")[0]
    return {re.sub(r"\.[SI]", ".0", k) for k in re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)}


def test_every_documented_key_is_read_by_the_agent() -> None:
    c = source()
    for key in documented_keys():
        prefix = key.split(".")[0]
        known = f'indexed(key, "{prefix}"' if "." in key else f'strcmp(key, "{key}")'
        assert known in c or (key == "args" and '"args=", 5' in c), key


def test_every_key_the_agent_reads_is_documented() -> None:
    c = source()
    read_keys = set(re.findall(r'strcmp\(key, "(\w+)"\)', c)) | {"args"}
    read_keys |= {f"{p}{'.0' * int(n)}" for p, n in re.findall(r'indexed\(key, "(\w+)", (\d)', c)}
    assert read_keys == documented_keys()


def test_every_key_of_a_job_is_documented_and_every_key_but_args_can_be_sent() -> None:
    sent = {re.sub(r"\.\d+", ".0", a.split("=", 1)[0]) for a in job_argv("agent", a_job())[2:]}
    assert sent == documented_keys() - {"args"}


def test_every_job_field_reaches_the_agent() -> None:
    plain = job_argv("agent", a_job())
    changes: dict[str, Any] = {
        "nonce": "n-2", "library": "/x", "runtime_dir": "/x", "model": "/x", "out_dir": "/x", "result": "/x",
        "log": "/x", "accelerators": ("cpu",), "signature": 1, "precision": "fp16", "backend": "opencl",
        "kernel_mode": "reference", "xnnpack_flags": 4, "gpu_options": (), "threads": 2, "inputs": ((),),
        "shapes": (), "warmup": 2, "iterations": 6, "iterations_ms": 7, "repeats": 8, "steps": 9, "deadline_s": 1.5,
        "fill": 165,
    }  # fmt: skip
    assert set(changes) == {f.name for f in dataclasses.fields(Job)}
    for name, value in changes.items():
        assert job_argv("agent", a_job(**{name: value})) != plain, name


def test_every_result_field_is_documented_and_written_by_the_agent() -> None:
    text, c = page().split("## Result")[1], source()
    for kind in (AgentResult, TensorInfo, RunData, OutputData):
        for f in dataclasses.fields(kind):
            assert f"`{f.name}`" in text, f.name
            assert f'\\"{f.name}\\"' in c or f'"{f.name}"' in c, f.name


def test_every_stage_the_agent_enters_is_documented() -> None:
    text = page()
    for name in re.findall(r'stage\("(\w+)"\)', source()):
        assert f"`{name}`" in text, name


def test_protocol_and_version_are_one_number_each() -> None:
    c, text = source(), page()
    assert f"#define PROTOCOL {PROTOCOL}\n" in c
    assert f"# The agent's contract, protocol {PROTOCOL}\n" in text
    version = re.search(r'#define AGENT_VERSION "(.+)"', c)
    assert version is not None
    assert f"agent={version[1]} " in text


def test_every_config_can_be_asked_for() -> None:
    c = source()
    for config in CONFIGS.values():
        for value in (config.precision, config.backend, config.kernel_mode):
            assert f'"{value}"' in c, value


# ---- jobs -----------------------------------------------------------------------------------------------------------


def test_argv_carries_a_job_word_for_word() -> None:
    argv = job_argv("/x/agent", a_job())
    assert argv[:3] == ["/x/agent", "1", "nonce=n-1"]
    assert "accelerators=gpu,cpu" in argv
    assert "shape.0=1x8" in argv
    assert not any(a.startswith("shape.1") for a in argv)
    assert argv[-4:] == ["input.0.0=/a", "input.0.1=/b", "input.1.0=/c", "input.1.1=/d"]
    assert "gpu_option=priority = 2" in argv


def test_a_file_of_a_job_holds_the_same_lines() -> None:
    job = a_job(model="/é =x.tflite")
    assert job_file(job).decode().splitlines() == job_argv("agent", job)[2:]


def test_a_signature_without_inputs_has_one_set() -> None:
    assert job_argv("agent", a_job(inputs=((),), shapes=()))[-1] == "sets=1"


@pytest.mark.parametrize(
    "changes",
    [{"model": "/a\nbogus=1"}, {"gpu_options": ("a\nb",)}, {"nonce": ""}, {"nonce": "a b"}, {"nonce": "n\n"},
     {"inputs": ()}, {"out_dir": "/a\0b"}],
)  # fmt: skip
def test_what_the_contract_cannot_carry_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"nonce|line break|input set"):
        job_argv("agent", a_job(**changes))


# ---- results --------------------------------------------------------------------------------------------------------


def test_a_success_is_read_whole() -> None:
    result = read(a_result())
    assert result.runs[0].outputs[0].repeat_files == {"1": "0.0.0.r1.raw"}
    assert result.runs[0].latency_ms == (1.5,)
    assert result.non_cpu_fully_accelerated is None


def test_a_failure_needs_only_what_a_signal_handler_writes() -> None:
    result = read({"protocol": 1, "agent_version": "1", "nonce": "n-1", "ok": False, "stage": "run", "signal": 11})
    assert (result.ok, result.signal, result.runs) == (False, 11, ())


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "PROTOCOL.md"), (b"{", "PROTOCOL.md"), (b"[]", "PROTOCOL.md"), (b"\xff\xfe", "PROTOCOL.md"),
     (b'{"protocol":1}', "PROTOCOL.md"), (b'{"protocol":2,"nonce":"n-1"}', "protocol 2"),
     (b'{"protocol":1,"nonce":"n-9"}', "another job"), (b'{"protocol":1,"nonce":"n-1"}', "PROTOCOL.md"),
     (b"[" * 100_000, "PROTOCOL.md")],
)  # fmt: skip
def test_what_is_no_result_of_this_job_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ResultRefused, match=words):
        read_result(data, "n-1")


def hostile() -> list[Any]:
    cases: list[Any] = []

    def case(name: str, change: Any) -> None:
        cases.append(pytest.param(change, id=name))

    def output(**changes: Any) -> Any:
        value = a_result()
        value["runs"][0]["outputs"][0].update(changes)
        return value

    for file in ("../0.raw", "/etc/passwd", "0.0.0.raw\n", "a.raw", "0.0.raw", "0.0.0.RAW", "", "0.0.0.r1.raw"):
        case(f"file {file!r}", output(file=file))
    case("repeat file", output(repeat_files={"1": "../x"}))
    case("repeat file missing", output(repeat_files={}))
    case("repeat file too many", output(repeat_files={"0": "0.0.0.r0.raw", "1": "0.0.0.r1.raw"}))
    case("repeat number", output(repeat_files={"9": "0.0.0.r9.raw"}))
    case("hash", output(sha256="A" * 64, repeat_sha256=["A" * 64], repeat_files={}))
    case("hash length", output(sha256="a" * 63, repeat_sha256=["a" * 63], repeat_files={}))
    case("first repeat", output(repeat_sha256=[OTHER, HASH]))
    case("no repeat", output(repeat_sha256=[], repeat_files={}))
    case("size", output(size_bytes=-1))
    case("size text", output(size_bytes="16"))
    case("size float", output(size_bytes=1.5))
    case("shape", output(shape=[-1]))
    case("index", output(index=1))
    case("time", a_result(compile_ms=-1))
    case("infinite time", a_result(compile_ms="Infinity"))
    case("memory", a_result(peak_rss_bytes=-1))
    case("ok with signal", a_result(signal=11))
    case("ok with timeout", a_result(timed_out=True))
    case("ok with status", a_result(status=504))
    case("ok without runs", a_result(runs=[]))
    case("run without outputs", a_result(runs=[{"set": 0, "outputs": []}]))
    case("negative set", a_result(runs=[a_result()["runs"][0] | {"set": -1}]))
    case("negative latency", a_result(runs=[a_result()["runs"][0] | {"latency_ms": [-1]}]))
    case("one file twice", a_result(runs=a_result()["runs"] * 2))
    case("tensor size", a_result(inputs=[a_result()["outputs"][0] | {"size_bytes": -1}]))
    return cases


@pytest.mark.parametrize("value", hostile())
def test_values_the_agent_never_writes_are_refused(value: Any) -> None:
    with pytest.raises(ResultRefused, match=r"PROTOCOL\.md"):
        read(value)


def test_nan_is_not_json() -> None:
    with pytest.raises(ResultRefused):
        read_result(msgspec.json.encode(a_result()).replace(b"1.5", b"NaN"), "n-1")


@given(st.binary(max_size=300), st.integers(0, 400))
def test_a_damaged_result_never_raises_anything_else(noise: bytes, at: int) -> None:
    data = msgspec.json.encode(a_result())
    at = min(at, len(data))
    for damaged in (noise, data[:at], data[:at] + noise + data[at:], data[:at] + noise):
        with contextlib.suppress(ResultRefused):
            read_result(damaged, "n-1")
