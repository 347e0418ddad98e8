"""farm layers: which layer of a model goes wrong, on which device and in which precision, and why."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import click

from farm.cli._common import (
    InputShape,
    Names,
    flatten,
    inventory_option,
    json_option,
    open_inventory,
    print_json,
    shapes_of,
    show,
    verbose_option,
)
from farm.errors import InvalidInput, Problem

EPILOG = """\b
Examples:
  farm layers model.tflite
  farm layers model.tflite --config gpu --inputs real.npz
  farm layers model.tflite --inventory lab.yaml --device pixel9 --device 'tag:adreno'

\b
Every inner tensor is compared with this machine's CPU. The folder --out gets a CSV and Model Explorer node data per
device and config, depth.svg over all of them, and a bundle of the named op to attach to a bug report.
Exit codes: 0 no bad layer, 1 an op is named, 2 bad input and nothing was run, 3 a device could not be studied."""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL.tflite")
@inventory_option
@click.option(
    "--device", "devices", multiple=True, metavar="ID", help="This device: an id, a glob or tag:NAME; repeatable."
)
@click.option(
    "--config", "configs", type=Names(), multiple=True, metavar="NAME,...", help="Configs (default: gpu,gpu-fp32)."
)
@click.option(
    "--inputs", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="Inputs as .npz or .safetensors."
)
@click.option(
    "--input-shape", "input_shapes", type=InputShape(), multiple=True, metavar="NAME=1,8", help="Resize an input."
)
@click.option("--signature", metavar="KEY", help="The signature to study (needed where the model has several).")
@click.option("--runtime", metavar="VERSION", help="The LiteRT runtime of the devices.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the generated inputs (default 0).")
@click.option(
    "--budget-mb",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="MiB of inner tensors that one run shows; less for small phones.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("layers"), show_default=True, help="Folder of the results."
)
@json_option
@verbose_option
def command(
    model: Path,
    inventory_path: Path | None,
    devices: tuple[str, ...],
    configs: tuple[tuple[str, ...], ...],
    inputs: tuple[Path, ...],
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    signature: str | None,
    runtime: str | None,
    seed: int | None,
    budget_mb: int,
    out: Path,
    as_json: bool,
    verbose: bool,
) -> int:
    """Find the op that breaks MODEL on each device and config, compare every layer, say why.

    Without --device the device is this machine.
    """
    import dataclasses

    from farm.canary import measure_device
    from farm.cases import ModelRequest, build_cases
    from farm.configs import select_configs
    from farm.defaults import Limits
    from farm.inventory import default_inventory, select_devices
    from farm.layers.study import Study, open_model, study_device
    from farm.objects import Objects
    from farm.runner import open_transport

    inventory = open_inventory(inventory_path) if devices or inventory_path else default_inventory()
    chosen = select_devices(inventory, devices)
    wanted = select_configs(flatten(configs) or ["gpu", "gpu-fp32"], own=inventory.configs, diagnostics=False)
    limits = inventory.with_limits(Limits())
    if seed is not None:
        limits = dataclasses.replace(limits, seed=seed)
    studies: list[Study] = []
    with tempfile.TemporaryDirectory(prefix="litert-farm-inputs-") as tmp:
        objects = Objects(Path(tmp))
        request = ModelRequest(path=model, inputs=inputs, input_shapes=shapes_of(input_shapes), signature=signature)
        cases = build_cases([request], objects, limits)
        if len(cases) > 1:
            keys = ", ".join(repr(c.signature_key) for c in cases)
            raise InvalidInput(
                Problem(message=f"has {len(cases)} signatures", file=str(model), cure=f"choose --signature: {keys}")
            )
        opened = open_model(cases[0])
        folder = out / re.sub(r"[^A-Za-z0-9._~-]+", "_", cases[0].model)
        for device in chosen:
            for study in study_device(
                device,
                cases[0],
                opened,
                wanted,
                limits=limits,
                inputs=objects,
                connect=open_transport,
                measure=measure_device,
                runtime=runtime,
                budget_bytes=budget_mb << 20,
                bundles=folder,
                say=lambda words: print(words, file=sys.stderr, flush=True) if verbose else None,
            ):
                studies.append(study)
                _keep(folder, study)
                if not as_json:
                    from farm.layers.table import render

                    show(render(study))
    _keep_all(folder, studies)
    if as_json:
        print_json(studies)
    elif len(studies) > 1:
        from farm.layers.table import matrix

        show("First bad op and cause:\n" + matrix(studies))
    print(f"Kept in {folder} (CSV, depth.svg, Model Explorer node data).", file=sys.stderr)
    if any(s.named for s in studies):
        return 1
    return 3 if any(s.error is not None for s in studies) else 0


def _keep(folder: Path, study: object) -> None:
    """Write one study's own files. Raises InvalidInput where the folder cannot be written."""
    from farm.layers.files import csv_text, json_text, model_explorer
    from farm.layers.study import Study

    assert isinstance(study, Study)
    name = re.sub(r"[^A-Za-z0-9._~-]+", "_", f"{study.device}--{study.config}").lstrip(".-")
    _write(folder / f"{name}.json", json_text(study))
    if study.error is None:
        _write(folder / f"{name}.csv", csv_text(study))
        _write(folder / f"{name}.model-explorer.json", model_explorer(study))


def _keep_all(folder: Path, studies: list) -> None:  # type: ignore[type-arg]
    from farm.layers.plot import svg

    _write(folder / "depth.svg", svg(studies))


def _write(path: Path, text: str) -> None:
    from farm.codec import write_whole

    try:
        write_whole(path, text.encode("utf-8", "surrogateescape"))
    except OSError as e:
        raise InvalidInput(
            Problem(message=f"cannot write: {e.strerror or e}", file=str(path), cure="choose another --out")
        ) from e
