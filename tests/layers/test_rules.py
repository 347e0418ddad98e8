"""The rules that name ops, on hand-made figures: pure, no device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from farm.layers.health import Health, assess
from farm.layers.locate import Local, blame, forgive_masks, harmful, plain_sources
from farm.layers.view import View, watch
from farm.tflite import Quantization, read_model
from tests.graphs import Graph, masked_attention

GOOD = Health(
    bad=False, why="", snr_db=60.0, cosine=1.0, nrmse=0.0, max_abs=0.0, ref_max=1.0, new_nonfinite=0, tiny=False,
    error_norm=1e-3,
)  # fmt: skip
BAD = dataclasses.replace(GOOD, bad=True, why="wrong", snr_db=3.0, error_norm=1.0)


def two_branches(tmp_path: Path) -> View:
    """x → a → {b → d, c} → e = d + c → f, the output."""
    g = Graph()
    x = g.input("x", (1, 8))
    a, b, c, d, e, f = (g.tensor(n, (1, 8)) for n in "abcdef")
    for name, inputs, output in (
        ("TANH", [x], a), ("ABS", [a], b), ("NEG", [a], c), ("TANH", [b], d), ("ADD", [d, c], e), ("TANH", [e], f)
    ):  # fmt: skip
        g.op(name, inputs, [output])
    path = tmp_path / "m.tflite"
    path.write_bytes(g.finish([f]))
    return watch(read_model(path), 0)


def figures(view: View, bad: str, **special: Health) -> dict[int, Health]:
    return {t: special.get(la.name, BAD if la.name in bad else GOOD) for t, la in view.layers.items()}


def names(view: View, tensors: object) -> str:
    return "".join(sorted(view.layers[t].name for t in tensors))  # type: ignore[attr-defined]


def unchecked(_: list[int]) -> Mapping[int, Local]:
    return {}


def test_the_source_is_bad_and_all_that_feeds_it_is_good(tmp_path: Path) -> None:
    view = two_branches(tmp_path)
    found = blame(view, figures(view, "bdef"), unchecked)
    assert names(view, found.sources) == "b"


def test_both_branches_may_hold_a_source(tmp_path: Path) -> None:
    view = two_branches(tmp_path)
    assert names(view, blame(view, figures(view, "cdef"), unchecked).sources) == "cd"


def test_a_bad_tensor_whose_readers_are_good_is_masked(tmp_path: Path) -> None:
    view = two_branches(tmp_path)
    found = blame(view, figures(view, "bd"), unchecked)
    assert found.sources == ()
    assert names(view, found.masked) == "bd"


def test_nothing_is_named_when_the_outputs_are_good(tmp_path: Path) -> None:
    view = two_branches(tmp_path)
    assert blame(view, figures(view, "abcde"), unchecked).sources == ()


def test_an_error_that_a_sum_hides_still_counts(tmp_path: Path) -> None:
    view = two_branches(tmp_path)
    hidden = dataclasses.replace(GOOD, error_norm=1.1)
    assert names(view, harmful(view, figures(view, "bdf", e=hidden))) == "bdf"
    # A sum whose own error is another one, or none, carries nothing of the kind.
    assert names(view, harmful(view, figures(view, "bdf"))) == "f"
    assert names(view, harmful(view, figures(view, "bdf", e=dataclasses.replace(GOOD, error_norm=50.0)))) == "f"


def test_plain_sources_come_in_the_order_they_run(tmp_path: Path) -> None:
    view = two_branches(tmp_path)
    health = figures(view, "bcdef")
    assert [view.layers[t].name for t in plain_sources(view, health, harmful(view, health))] == ["b", "c"]


def locals_of(view: View, **checks: tuple[Health, Health]) -> Mapping[int, Local]:
    by_name = {la.name: t for t, la in view.layers.items()}
    return {by_name[n]: Local(local=local, inherited=inherited) for n, (local, inherited) in checks.items()}


def test_a_local_check_moves_the_blame_to_the_op_that_is_wrong_itself(tmp_path: Path) -> None:
    view = two_branches(tmp_path)
    # b looks bad (tiny values flushed), but e comes out right from it and goes wrong by itself.
    checks = locals_of(view, b=(BAD, GOOD), d=(GOOD, BAD), e=(BAD, GOOD), f=(GOOD, BAD))
    found = blame(view, figures(view, "bdef"), lambda _: checks)
    assert names(view, found.sources) == "e"
    assert names(view, found.masked) == "bd"


def test_when_no_op_is_wrong_itself_the_error_has_accumulated(tmp_path: Path) -> None:
    view = two_branches(tmp_path)
    checks = locals_of(view, d=(GOOD, BAD), e=(GOOD, BAD), f=(GOOD, BAD))
    found = blame(view, figures(view, "def"), lambda _: checks)
    assert found.accumulated
    assert names(view, found.sources) == "d"


def test_a_mask_that_became_inf_is_forgiven_into_a_softmax_only(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(masked_attention())
    view = watch(read_model(path), 0)
    masked = dataclasses.replace(BAD, mask=True, new_nonfinite=3)
    health = {t: masked if la.name in ("add", "sm") else GOOD for t, la in view.layers.items()}
    assert not any(h.bad for h in forgive_masks(view, health).values())
    # The same where the softmax itself went wrong, or other positions are wrong too, or NaN came of it.
    worse = {t: dataclasses.replace(h, bad_beside_mask=h.mask) for t, h in health.items()}
    assert sum(h.bad for h in forgive_masks(view, worse).values()) == 2
    other = {t: dataclasses.replace(h, mask=False) for t, h in health.items()}
    assert sum(h.bad for h in forgive_masks(view, other).values()) == 2


# --- one tensor -------------------------------------------------------------------------------------------------------


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(("low", "bad"), [(True, False), (False, True)])
def test_limits_follow_the_precision_class(low: bool, bad: bool) -> None:
    golden = np.linspace(1, 2, 64, dtype=np.float32)
    # An error of 1 % of every value is 40 dB: between FP16's limit of 20 dB and FP32's of 50 dB.
    health = assess(golden, golden * np.float32(1.01), low_precision=low)
    assert health.snr_db == pytest.approx(40.0, abs=0.01)
    assert health.bad is bad


def test_nrmse_is_the_error_over_the_range_of_the_reference() -> None:
    golden = f32(0, 1, 2, 3, 4, 5, 6, 8)
    health = assess(golden, golden + np.float32(0.5), low_precision=True)
    assert health.nrmse == pytest.approx(0.5 / 8)
    assert health.max_abs == pytest.approx(0.5)
    assert health.error_norm == pytest.approx(0.5 * math.sqrt(8))


def test_nan_is_bad_whatever_the_rest_says() -> None:
    golden = np.ones(1000, np.float32)
    seen = golden.copy()
    seen[3] = np.nan
    health = assess(golden, seen, low_precision=True)
    assert (health.bad, health.new_nonfinite, health.mask) == (True, 1, False)
    assert health.why == "1 of 1000 elements are NaN or Inf"


@pytest.mark.parametrize(
    ("value", "seen", "mask"), [(-1e9, -np.inf, True), (1e9, np.inf, False), (-1e4, -np.inf, False)]
)
def test_a_mask_is_minus_inf_where_the_cpu_is_below_fp16(value: float, seen: float, mask: bool) -> None:
    golden, target = np.ones(16, np.float32), np.ones(16, np.float32)
    golden[0], target[0] = value, seen
    assert assess(golden, target, low_precision=True).mask is mask


def test_values_too_small_for_fp16_are_marked_tiny_also_when_the_device_gives_nan() -> None:
    golden = np.full(16, 1e-6, np.float32)
    assert assess(golden, np.zeros_like(golden), low_precision=True).tiny
    assert not assess(golden * 1000, np.full_like(golden, np.nan), low_precision=True).tiny


def test_saturation_and_shape_are_bad() -> None:
    golden = np.full(16, 1e5, np.float32)
    assert "65504" in assess(golden, np.full_like(golden, 65504), low_precision=True).why
    assert assess(golden, golden[:8], low_precision=True).bad


def test_quantised_tensors_are_compared_as_the_values_they_stand_for() -> None:
    quantization = Quantization(scale=(0.5,), zero_point=(100,))
    golden = np.full(16, 110, np.uint8)
    # 110 stands for 5.0, 111 for 5.5: 20 log10(5 / 0.5) = 20 dB, whatever the zero point.
    health = assess(golden, golden + np.uint8(1), low_precision=False, quantization=quantization)
    assert health.snr_db == pytest.approx(20.0)
    assert not health.bad


def test_integers_without_a_scale_must_be_equal() -> None:
    golden = np.arange(1000, dtype=np.int32)
    seen = golden.copy()
    seen[:2] += 1
    assert assess(golden, seen, low_precision=True).bad
    assert not assess(golden, golden, low_precision=True).bad
