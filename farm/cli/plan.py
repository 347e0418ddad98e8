"""farm plan: what a sweep would do, in which order, and about how long; touches no device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from farm.cli._common import (
    FILE,
    InputShape,
    Names,
    flatten,
    inventory_option,
    json_option,
    print_json,
    shapes_of,
    show,
)
from farm.errors import InvalidInput, Problem

EPILOG = """\b
Examples:
  farm plan model.tflite
  farm plan --inventory inventory.yaml --device 'tag:nightly' --config cpu,gpu
  farm plan --inventory inventory.yaml --json

Takes what farm sweep takes to choose cells. Bad input ends with 2, as it would there."""


@click.command(epilog=EPILOG)
@click.argument("models", nargs=-1, type=FILE, metavar="[MODEL.tflite]...")
@inventory_option
@click.option(
    "--device", "devices", multiple=True, metavar="ID", help="Only this device: an id, a glob or tag:NAME; repeatable."
)
@click.option(
    "--config",
    "--backends",
    "configs",
    type=Names(),
    multiple=True,
    metavar="NAME,...",
    help="Delegate precision configs.",
)
@click.option("--inputs", multiple=True, type=FILE, metavar="FILE", help="Inputs as .npz or .safetensors.")
@click.option(
    "--input-shape", "input_shapes", type=InputShape(), multiple=True, metavar="NAME=1,8", help="Resize an input."
)
@click.option("--runtime", type=Names(), multiple=True, metavar="VERSION,...", help="LiteRT runtimes to run.")
@click.option("--signature", metavar="KEY", help="Only this signature.")
@json_option
def command(
    models: tuple[Path, ...],
    inventory_path: Path | None,
    devices: tuple[str, ...],
    configs: tuple[tuple[str, ...], ...],
    inputs: tuple[Path, ...],
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    runtime: tuple[tuple[str, ...], ...],
    signature: str | None,
    as_json: bool,
) -> None:
    """Print the cells a sweep would run, with an estimate of the time."""
    if not models and inventory_path is None:
        raise InvalidInput(
            Problem(message="there is nothing to plan", cure="name a .tflite file, or give --inventory FILE")
        )
    shapes = shapes_of(input_shapes)

    from farm.prepare import prepare

    plan = prepare(
        models=list(models),
        inventory=inventory_path,
        devices=list(devices) or None,
        configs=flatten(configs),
        inputs=list(inputs) or None,
        input_shapes=shapes or None,
        runtime=flatten(runtime),
        signature=signature,
    )
    if as_json:
        print_json(plan)
        return
    from farm.plan import estimate

    show(render_plan(plan, estimate(plan, None)))


def render_plan(plan: Any, seconds: Any) -> str:
    """Return the plan as a table: a row per device and case, its configs in order, and the estimate per device."""
    from tabulate import tabulate

    rows: dict[tuple[str, str, str], list[str]] = {}
    for cell in plan.cells:
        rows.setdefault((cell.device, cell.case, cell.runtime), []).append(cell.config)
    table = tabulate(
        [(device, case, runtime, " ".join(configs)) for (device, case, runtime), configs in rows.items()],
        headers=("device", "case", "runtime", "configs, in order"),
        disable_numparse=True,
    )
    lines = [table, "", f"{len(plan.cells)} cells on {len(plan.devices)} device(s)."]
    lines += [f"  {device}: about {value:.0f} s" for device, value in seconds.items()]
    lines += [f"note: {case.id}: {warning}" for case in plan.cases for warning in case.warnings]
    lines += [f"note: {case.id}: {case.invalid}" for case in plan.cases if case.invalid]
    return "\n".join(lines)
