"""farm export-app-test: golden inputs, a Kotlin test and a Swift XCTest that run a model inside the app."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from farm.cli._common import InputShape, Names, flatten, json_option, print_json, shapes_of, show
from farm.errors import InvalidInput, Problem

EPILOG = """\b
Examples:
  farm export-app-test model.tflite
  farm export-app-test model.tflite --inputs real.npz --config cpu,gpu,gpu-fp32 --out app_test

\b
The test dumps raw outputs and JSON from inside the app; `farm compare DUMP --as-device NAME` puts them into a run as
a column. The README.md in the folder says how to run it. The sources are not compiled here."""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--inputs", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="Inputs, as for sweep.")
@click.option(
    "--input-shape", "input_shapes", type=InputShape(), multiple=True, metavar="NAME=1,8", help="Resize an input."
)
@click.option("--signature", metavar="KEY", help="The signature to test (needed where the model has several).")
@click.option(
    "--config", "configs", type=Names(), multiple=True, metavar="NAME,...", help="Configs (default: cpu,gpu,gpu-fp32)."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the generated inputs.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("app_test"), show_default=True, help="Folder to write."
)
@json_option
def command(
    model: Path,
    inputs: tuple[Path, ...],
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    signature: str | None,
    configs: tuple[tuple[str, ...], ...],
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Write a test of MODEL that runs inside the app."""
    from farm.app_test import export_app_test
    from farm.cases import build_cases
    from farm.configs import select_configs
    from farm.defaults import Limits
    from farm.objects import Objects
    from farm.specs import model_requests

    requests = model_requests([model], inputs=inputs, input_shapes=shapes_of(input_shapes), signature=signature)
    with tempfile.TemporaryDirectory(prefix="litert-farm-inputs-") as tmp:
        objects = Objects(Path(tmp))
        cases = build_cases(requests, objects, Limits(seed=seed))
        if len(cases) > 1:
            keys = ", ".join(repr(c.signature_key) for c in cases)
            raise InvalidInput(
                Problem(message=f"has {len(cases)} signatures", file=str(model), cure=f"choose --signature: {keys}")
            )
        made = export_app_test(cases[0], objects, select_configs(flatten(configs), diagnostics=False), out)
    if as_json:
        print_json(made)
        return
    show("\n".join(str(made.folder / name) for name in made.files if not name.endswith(".raw")))
    for sentence in made.left_out:
        print(f"farm: {sentence}", file=sys.stderr)
