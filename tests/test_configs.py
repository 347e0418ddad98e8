"""Configs: the built-in ones and how they are chosen."""

from __future__ import annotations

import pytest

from farm.configs import CONFIGS, XNNPACK_FORCE_FP16, Config, select_configs
from farm.errors import InvalidInput

MINE = Config(name="mine", accelerator="gpu", precision="fp32")


def names(*args: str, **kwargs: bool) -> list[str]:
    return [c.name for c in select_configs(args or None, {"mine": MINE}, **kwargs)]


def test_the_default_is_cpu_gpu_and_gpu_fp32_with_the_diagnostics() -> None:
    assert names() == ["cpu", "gpu", "gpu-fp32", "cpu-ref", "cpu-fp16"]
    assert [c.name for c in select_configs()] == names()
    assert [c.name for c in select_configs([])] == names()


def test_comma_lists_and_repeats_are_joined_in_order_each_once() -> None:
    assert names("gpu-fp32, gpu", "cpu,gpu", diagnostics=False) == ["gpu-fp32", "gpu", "cpu"]


def test_diagnostics_can_be_left_out_or_named() -> None:
    assert names("cpu", diagnostics=False) == ["cpu"]
    assert names("cpu-ref,cpu") == ["cpu-ref", "cpu", "cpu-fp16"]


def test_configs_of_the_inventory_are_known_too() -> None:
    assert select_configs(["mine"], {"mine": MINE}, diagnostics=False) == (MINE,)


def test_every_unknown_name_is_refused_with_the_nearest_and_the_list() -> None:
    with pytest.raises(InvalidInput) as e:
        names("gpu-pf32,cpu", "turbo", "gpu-pf32")
    assert [p.message for p in e.value.problems] == ["unknown config 'gpu-pf32'", "unknown config 'turbo'"]
    assert str(e.value.problems[0].cure).startswith("did you mean 'gpu-fp32'? known: cpu, cpu-ref")
    assert str(e.value.problems[1].cure) == "known: " + ", ".join([*CONFIGS, "mine"])


def test_names_that_name_nothing_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no config is named"):
        names(" , ")


def test_the_diagnostics_are_marked_and_ask_for_what_they_say() -> None:
    assert [c.name for c in CONFIGS.values() if c.diagnostic] == ["cpu-ref", "cpu-fp16"]
    assert CONFIGS["cpu-ref"].kernel_mode == "reference"
    assert CONFIGS["cpu-fp16"].xnnpack_flags == XNNPACK_FORCE_FP16 == 4
    assert all(name == config.name for name, config in CONFIGS.items())
