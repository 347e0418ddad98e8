"""The plan: every cell once, in a sensible order, under a name that is safe, and an honest estimate."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.cases import Case, InputArray, InputSet
from farm.codec import from_json, to_json
from farm.configs import CONFIGS, Config, select_configs
from farm.defaults import Limits
from farm.plan import MAX_CELL_ID, Known, Plan, PlannedDevice, estimate, make_plan

A, B = PlannedDevice(id="a", transport="local"), PlannedDevice(id="b", transport="adb", address={"serial": "1"})


def case(name: str, *, megabytes: float = 1.0, invalid: str | None = None, sets: int = 2) -> Case:
    array = InputArray(name="x", dtype="float32", shape=(1,), sha256="0" * 64, size_bytes=4, recipe="zeros")
    return Case(
        id=name,
        model=name,
        model_path=f"{name}.tflite",
        model_sha256=name.encode().hex().ljust(64, "0")[:64],
        model_size_bytes=int(megabytes * 1e6),
        signature=0,
        signature_key="",
        graph=None,
        input_sets=tuple(InputSet(name=f"s{i}", origin="synthetic", arrays=(array,)) for i in range(sets)),
        invalid=invalid,
    )


def plan(
    devices: Any = (A, B),
    cases: Any = None,
    configs: Any = None,
    runtimes: Any = None,
    **more: Any,
) -> Plan:
    return make_plan(
        devices,
        cases if cases is not None else (case("m"), case("n")),
        configs if configs is not None else select_configs(),
        runtimes or {d.id: ("litert-2.3.0",) for d in devices},
        more.pop("limits", Limits()),
        run_id="20310101T000000Z-abcdef",
        created="2031-01-01T00:00:00Z",
        farm_version="0",
        **more,
    )


def test_every_device_case_config_and_runtime_has_one_cell() -> None:
    made = plan(runtimes={"a": ("r1", "r2"), "b": ("r1",)})
    got = [(c.device, c.case, c.config, c.runtime) for c in made.cells]
    wanted = {
        (d, m, c.name, r) for d, runtimes in (("a", ("r1", "r2")), ("b", ("r1",))) for r in runtimes
        for m in ("m", "n") for c in select_configs()
    }  # fmt: skip
    assert set(got) == wanted
    assert len(got) == len(wanted) == 30


def test_cpu_comes_first_then_gpu_then_the_diagnostics_whatever_order_they_were_named_in() -> None:
    made = plan((A,), (case("m"),), select_configs(["gpu-fp32,gpu,cpu"]))
    assert [c.config for c in made.cells] == ["cpu", "gpu-fp32", "gpu", "cpu-ref", "cpu-fp16"]


def test_a_diagnostic_of_the_users_own_comes_last_too() -> None:
    mine = Config(name="mine", accelerator="gpu", diagnostic=True)
    made = plan((A,), (case("m"),), (mine, CONFIGS["gpu"], CONFIGS["cpu"]))
    assert [c.config for c in made.cells] == ["cpu", "gpu", "mine"]


def test_cells_go_device_by_device_and_case_by_case() -> None:
    made = plan(configs=select_configs(["cpu"], diagnostics=False))
    assert [(c.device, c.case) for c in made.cells] == [("a", "m"), ("a", "n"), ("b", "m"), ("b", "n")]


def test_ids_read_as_device_case_config_and_name_the_runtime_only_where_there_are_several() -> None:
    made = plan((A, B), (case("m"),), (CONFIGS["gpu"],), {"a": ("r1", "r2"), "b": ("r1",)})
    assert [c.id for c in made.cells] == ["a--m--gpu--r1", "a--m--gpu--r2", "b--m--gpu"]


def test_a_runtime_named_twice_is_run_once() -> None:
    made = plan((A,), (case("m"),), (CONFIGS["gpu"],), {"a": ("r1", "r1")})
    assert [c.id for c in made.cells] == ["a--m--gpu"]


def test_ids_that_would_be_the_same_file_get_a_digest() -> None:
    devices = (PlannedDevice(id="a", transport="local"), PlannedDevice(id="a--b", transport="local"))
    cases = (case("b--c"), case("c"), case("C"))
    ids = [c.id for c in plan(devices, cases, (CONFIGS["gpu"],)).cells]
    assert len({i.casefold() for i in ids}) == 6
    assert ids[0].startswith("a--b--c--gpu-")
    assert "a--b--b--c--gpu" in ids  # unlike any other: no digest


def test_long_ids_are_cut_and_stay_apart() -> None:
    long = "m" * 300
    ids = [c.id for c in plan((A,), (case(long + "1"), case(long + "2")), (CONFIGS["gpu"],)).cells]
    assert [len(i) for i in ids] == [MAX_CELL_ID, MAX_CELL_ID]
    assert ids[0] != ids[1]


def test_no_part_of_an_id_makes_it_an_option_or_a_hidden_file() -> None:
    for name in ("-rf", "..", ".hidden", "../../x"):
        (cell,) = plan((PlannedDevice(id=name, transport="local"),), (case(name),), (CONFIGS["gpu"],)).cells
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._~-]*", cell.id), cell.id


@given(st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=6, unique=True))
def test_ids_are_safe_file_names_and_unique_for_any_case_id(names: list[str]) -> None:
    ids = [c.id for c in plan((A,), [case(n) for n in names], (CONFIGS["gpu"], CONFIGS["cpu"])).cells]
    assert len({i.casefold() for i in ids}) == 2 * len(names)
    for i in ids:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._~-]*", i)
        assert len(i) <= MAX_CELL_ID


def test_the_same_input_gives_the_same_plan() -> None:
    assert to_json(plan()) == to_json(plan())


def test_a_plan_survives_its_file() -> None:
    made = plan(known=(Known(verdict="fail"),), band_overrides={"values": {"pass_snr_db": 70.0}}, inventory_sha256="00")
    assert from_json(to_json(made), Plan) == made


def test_a_damaged_model_keeps_its_cells() -> None:
    made = plan((A,), (case("m", invalid="truncated"),))
    assert len(made.cells) == 5


def test_names_given_twice_and_devices_without_runtime_are_faults_of_the_caller() -> None:
    with pytest.raises(ValueError, match="device ids are given twice: a"):
        plan((A, A))
    with pytest.raises(ValueError, match="case ids are given twice: m"):
        plan((A,), (case("m"), case("m")))
    with pytest.raises(ValueError, match="no runtime is named for: b"):
        plan(runtimes={"a": ("r",), "b": ()})


def test_an_estimate_without_history_says_that_it_rests_on_sizes() -> None:
    guess = estimate(plan())
    assert set(guess) == {"a", "b"}
    assert guess["a"] == guess["b"] > 0
    assert guess.reference_s > 0
    assert guess.basis.startswith("model sizes and timings on software GPUs")


def test_larger_models_and_more_inputs_take_longer_and_damaged_ones_nothing() -> None:
    def seconds(**kwargs: Any) -> float:
        return estimate(plan((A,), (case("m", **kwargs),)))["a"]

    assert seconds(megabytes=0.001) < seconds(megabytes=5) < seconds(megabytes=50)
    assert seconds(megabytes=5, sets=2) < seconds(megabytes=5, sets=4)
    canaries_only = seconds(megabytes=5, invalid="damaged")
    assert canaries_only == seconds(megabytes=50, invalid="damaged") < seconds(megabytes=0.001)


def test_timed_iterations_are_bounded_by_their_budget() -> None:
    short = plan((A,), (case("m", megabytes=1000),), limits=Limits(iterations=10_000, iterations_ms=1))
    # per set: one timed iteration of 50 s (it outlasts its budget), one warm-up and three repeats on the GPU
    gpu_only = dataclasses.replace(short, cells=tuple(c for c in short.cells if c.config == "gpu"))
    assert estimate(gpu_only)["a"] == pytest.approx(2 * 5 * 50 + 0.12 + 3 * 0.12)


def test_history_replaces_guesses_and_the_basis_says_how_far() -> None:
    made = plan((A,), (case("m"),), (CONFIGS["cpu"], CONFIGS["gpu"]))
    sha = made.cases[0].model_sha256
    some = estimate(made, {("a", sha, "gpu"): 100.0})
    assert 100 < some["a"] < 101
    assert some.basis.startswith("earlier runs of 1 of 2 cells, for the others model sizes")
    everything = estimate(made, {("a", sha, "gpu"): 100.0, ("a", sha, "cpu"): 50.0})
    assert everything["a"] == pytest.approx(150 + 3 * 0.02 + 3 * 0.12)  # three canaries per config
    assert everything.basis == "earlier runs of every cell"


def test_devices_run_side_by_side_but_local_ones_share_this_machine() -> None:
    c = PlannedDevice(id="c", transport="local")
    made = plan((A, B, c), (case("m"),), (CONFIGS["cpu"],))
    sha = made.cases[0].model_sha256
    guess = estimate(made, {("a", sha, "cpu"): 10.0, ("b", sha, "cpu"): 15.0, ("c", sha, "cpu"): 10.0})
    assert guess.total_s == pytest.approx(guess.reference_s + guess["a"] + guess["c"])
    assert guess["a"] + guess["c"] > guess["b"] > guess["a"]


def test_an_empty_plan_takes_no_time() -> None:
    assert estimate(plan((), ())).total_s == 0
