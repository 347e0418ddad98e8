"""Which precision class three canary outputs mean: numbers worked out by hand, then real runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from farm.canary import Canaries, canary_input, classify, local_identity, remote_identity
from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.objects import Objects
from farm.plan import PlannedDevice
from farm.runtimes import find_runtime, host_platform
from farm.session import Session
from farm.transports.base import Completed
from farm.transports.local import LocalTransport
from tests.lab.gpus import gpus

X = canary_input().astype(np.float64)
RIGHT = np.square(X)
EXACT = RIGHT.astype(np.float32)
ROUNDED = RIGHT.astype(np.float16).astype(np.float32)
"""Stored once as FP16: within 2^-11 = 4.9e-4 of the truth."""
NAN = np.full_like(EXACT, np.nan)
INF = np.full_like(EXACT, np.inf)
ZERO = np.zeros_like(EXACT)


@pytest.mark.parametrize(
    ("ok", "under", "over", "value"),
    [
        (EXACT, EXACT, EXACT, "fp32"),
        (EXACT * np.float32(1 + 5e-6), EXACT, EXACT, "fp32"),
        (ROUNDED, ROUNDED, ROUNDED, "fp16-storage"),
        (EXACT, ROUNDED, EXACT, "fp16-storage"),
        (EXACT * np.float32(1 + 1 / 256), EXACT, EXACT, "fp16-storage"),  # bfloat16 rounds by 2^-8
        (ROUNDED, NAN, NAN, "fp16"),
        (ROUNDED, ZERO, INF, "fp16"),
        (EXACT, ZERO, NAN, "fp16"),
        (ROUNDED, ZERO, EXACT, "unknown"),  # underflow without overflow: no float format does that
        (NAN, NAN, NAN, "unknown"),
        (ZERO, EXACT, EXACT, "unknown"),
        (None, EXACT, EXACT, "unknown"),
        (EXACT, None, EXACT, "unknown"),
        (EXACT, EXACT, None, "unknown"),
        (EXACT[:, :8], EXACT, EXACT, "unknown"),
    ],
)
def test_class_of_three_outputs(
    ok: np.ndarray | None, under: np.ndarray | None, over: np.ndarray | None, value: str
) -> None:
    assert classify(ok, under, over)[0] == value


def test_evidence_is_one_sentence_that_names_what_each_canary_gave() -> None:
    _, evidence = classify(ROUNDED, ZERO, NAN)
    assert "underflow gave zeros" in evidence
    assert "overflow gave NaN" in evidence
    assert "ok is off by 0.000" in evidence


def test_half_precision_rounding_lies_between_the_two_limits() -> None:
    # 2^-11 = 4.88e-4 is the most one rounding to FP16 changes; FP32 rounding changes 6e-8.
    error = np.max(np.abs(ROUNDED.astype(np.float64) - RIGHT) / RIGHT)
    assert 1e-5 < error <= 2**-11


class Counting(LocalTransport):
    """A real link to this machine that counts the agent processes started through it."""

    started = 0

    def run(self, argv: Sequence[str], timeout: float, **more: object) -> Completed:  # type: ignore[override]
        self.started += 1
        return super().run(argv, timeout, **more)  # type: ignore[arg-type]


def canaries(tmp_path: Path, identity: str | None = "this machine", **env: str) -> Canaries:
    session = Session(
        device=PlannedDevice(id="here", transport="local", env=env),
        transport=Counting(env),
        objects=Objects(tmp_path / "objects"),
        limits=Limits(),
    )
    session.open()
    return Canaries(session=session, agent_digest="a", identity=identity, cache=tmp_path / "cache")


def started(used: Canaries) -> int:
    assert isinstance(used.session.transport, Counting)
    return used.session.transport.started


RUNTIME = find_runtime(None, host_platform())


@pytest.mark.parametrize(("config", "value"), [("cpu", "fp32"), ("cpu-ref", "fp32"), ("cpu-fp16", "fp16")])
def test_the_cpu_of_this_machine_is_what_its_flags_ask_for(tmp_path: Path, config: str, value: str) -> None:
    used = canaries(tmp_path)
    measured = used.measure(CONFIGS[config], RUNTIME)
    assert measured.value == value, measured.evidence
    assert (measured.device, measured.runtime, measured.config) == ("here", RUNTIME.name, config)
    assert started(used) == 3


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("gpu", "config", "value"),
    [
        ("llvmpipe", "gpu", "fp16"),
        ("llvmpipe", "gpu-fp32", "fp32"),
        ("swiftshader", "gpu", "fp32"),
        ("swiftshader", "gpu-fp32", "fp32"),
        ("swiftshader", "gpu-fp16", "fp16-storage"),
    ],
)
def test_software_gpus_are_classified_as_measured_by_hand(tmp_path: Path, gpu: str, config: str, value: str) -> None:
    if gpu not in gpus():
        pytest.skip(f"needs {gpu} (make lab-gpus)")
    measured = canaries(tmp_path, VK_ICD_FILENAMES=str(gpus()[gpu])).measure(CONFIGS[config], RUNTIME)
    assert measured.value == value, measured.evidence


def test_a_class_is_measured_once_per_identity_config_and_runtime(tmp_path: Path) -> None:
    first = canaries(tmp_path).measure(CONFIGS["cpu"], RUNTIME)
    again = canaries(tmp_path)
    assert again.measure(CONFIGS["cpu"], RUNTIME) == first
    assert started(again) == 0
    for other in (
        (canaries(tmp_path, "another driver"), CONFIGS["cpu"], RUNTIME),
        (canaries(tmp_path), dataclasses.replace(CONFIGS["cpu"], xnnpack_flags=1), RUNTIME),
        (canaries(tmp_path), CONFIGS["cpu"], dataclasses.replace(RUNTIME, files={**RUNTIME.files, "x": ("0", 1)})),
    ):
        used, config, runtime = other
        used.measure(config, runtime)
        assert started(used) == 3


def test_without_an_identity_nothing_is_cached(tmp_path: Path) -> None:
    for _ in range(2):
        used = canaries(tmp_path, None)
        used.measure(CONFIGS["cpu"], RUNTIME)
        assert started(used) == 3


def test_a_canary_that_cannot_run_is_unknown_says_why_and_is_tried_again_next_time(tmp_path: Path) -> None:
    for _ in range(2):
        used = canaries(tmp_path, VK_ICD_FILENAMES="/nonexistent/icd.json")
        measured = used.measure(CONFIGS["gpu"], RUNTIME)
        assert measured.value == "unknown"
        assert "no GPU adapter" in measured.evidence
        assert started(used) >= 1


def test_identity_follows_the_driver_file_and_the_environment(tmp_path: Path) -> None:
    library, manifest = tmp_path / "libvk.so", tmp_path / "icd.json"
    library.write_bytes(b"one")
    manifest.write_text('{"ICD": {"library_path": "./libvk.so"}}')
    env = {"VK_ICD_FILENAMES": str(manifest)}
    before = local_identity(env)
    assert local_identity(env) == before
    assert local_identity({**env, "MESA_LOADER_DRIVER_OVERRIDE": "x"}) != before
    library.write_bytes(b"an upgrade")
    assert local_identity(env) != before


def test_a_device_that_did_not_tell_its_build_has_no_identity() -> None:
    assert remote_identity({"platform": "android-arm64"}) is None
    assert remote_identity({"os_build": "1"}) != remote_identity({"os_build": "2"})
