"""farm sweep: plan, run, judge and report in one go."""

from __future__ import annotations

import shlex
import sys
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
    open_inventory,
    print_json,
    shapes_of,
    show_matrix,
    verbose_option,
)
from farm.errors import InvalidInput, Problem

EPILOG = """\b
Examples:
  farm sweep model.tflite
  farm sweep model.tflite --backends cpu,gpu,gpu-fp32,gpu-fp16 --repeats 5
  farm sweep encoder.tflite --inputs real.npz --min-cosine 0.999
  farm sweep a.tflite b.tflite --device pixel9 --device 'tag:adreno'
  farm sweep --inventory inventory.yaml --json-output matrix.json
  farm sweep --resume runs/20250101T000000-ab12cd
  farm sweep --demo

\b
stdout is the matrix (or --json); the run folder keeps everything else.
Exit codes: 0 nothing that counts failed, 1 a model failed, 2 bad input and nothing was run, 3 something could not
be judged."""

CODES = {
    0: "nothing that counts failed",
    1: "a model failed",
    3: "something could not be judged",
}


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
    help="Delegate precision configs (default: cpu,gpu,gpu-fp32 and the diagnostics cpu-ref,cpu-fp16).",
)
@click.option("--inputs", multiple=True, type=FILE, metavar="FILE", help="Inputs as .npz or .safetensors.")
@click.option(
    "--input-shape",
    "input_shapes",
    type=InputShape(),
    multiple=True,
    metavar="NAME=1,8",
    help="Resize an input (its name or inN); repeatable.",
)
@click.option(
    "--runtime", type=Names(), multiple=True, metavar="VERSION,...", help="LiteRT runtimes to run, e.g. 2.2.0,2.3.0."
)
@click.option("--signature", metavar="KEY", help="Only this signature (default: every one).")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the generated inputs (default 0).")
@click.option("--repeats", type=click.IntRange(min=1), help="Runs compared with each other per input set (default 3).")
@click.option("--iterations", type=click.IntRange(min=1), help="Timed runs per input set (default 5).")
@click.option(
    "--min-cosine-similarity",
    "--min-cosine",
    "min_cosine",
    type=click.FloatRange(-1, 1),
    help="Fail outputs of 8 elements or more below this cosine, in addition to the bands.",
)
@click.option(
    "--min-norm", type=click.FloatRange(min=0), help="An output norm below this counts as zero (default 1e-4)."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder that holds the runs.",
)
@click.option(
    "--resume", type=click.Path(path_type=Path), metavar="RUN", help="Finish this run; repeats no finished cell."
)
@click.option("--retry-infra", is_flag=True, help="With --resume: try cells again whose device or link was lost.")
@click.option(
    "--json-output", type=click.Path(path_type=Path), metavar="FILE", help="Also write the matrix as JSON here."
)
@click.option(
    "--demo",
    is_flag=True,
    help="A demonstration: end with 0 after findings, say what CI would have got; alone it sweeps the shipped models.",
)
@json_option
@verbose_option
def command(
    models: tuple[Path, ...],
    inventory_path: Path | None,
    devices: tuple[str, ...],
    configs: tuple[tuple[str, ...], ...],
    inputs: tuple[Path, ...],
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    runtime: tuple[tuple[str, ...], ...],
    signature: str | None,
    seed: int | None,
    repeats: int | None,
    iterations: int | None,
    min_cosine: float | None,
    min_norm: float | None,
    out: Path,
    resume: Path | None,
    retry_infra: bool,
    json_output: Path | None,
    demo: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Run every delegate precision config of the models on the devices, judge the outputs, print the matrix.

    Without --inventory the devices are this machine and every ready phone of the adb server that runs here.
    """
    shapes = shapes_of(input_shapes)
    if demo and not models and inventory_path is None and resume is None:
        from farm.resources import resource_path

        inventory_path = resource_path("inventory.yaml")
    if resume is None and not models and inventory_path is None:
        raise InvalidInput(
            Problem(message="there is nothing to sweep", cure="name a .tflite file, or give --inventory FILE")
        )
    if resume is not None:
        refuse_with_resume(click.get_current_context())
    elif retry_infra:
        raise InvalidInput(Problem(message="--retry-infra needs a run to go on with", cure="add --resume RUN"))
    if json_output is not None:
        check_writable(json_output)

    from farm.cli._events import listeners, run_events
    from farm.cli._progress import SweepProgress
    from farm.sweep import sweep

    wanted: dict[str, Any] = {
        "seed": seed,
        "repeats": repeats,
        "iterations": iterations,
        "min_norm": min_norm,
    }
    inventory: Any = inventory_path
    if inventory_path is None and resume is None:
        inventory = found_inventory(list(models), list(devices), flatten(configs))
    elif inventory_path is not None:
        inventory = open_inventory(inventory_path)
    with SweepProgress(verbose=verbose) as progress, run_events(inventory) as events:
        result = sweep(
            models=list(models),
            inventory=inventory,
            devices=list(devices) or None,
            configs=flatten(configs),
            inputs=list(inputs) or None,
            input_shapes=shapes or None,
            runtime=flatten(runtime),
            signature=signature,
            min_cosine_similarity=min_cosine,
            out=out,
            resume=resume,
            retry_infra=retry_infra,
            **listeners(progress, events),
            **{name: value for name, value in wanted.items() if value is not None},
        )
        if events is not None:
            events.end(result.matrix, result.run_folder, interrupted=result.interrupted)

    code = int(result.exit_code)
    if json_output is not None and not write_matrix(json_output, result.matrix):
        code = code or 3
    if as_json:
        print_json(result.matrix)
    else:
        show_matrix(result.matrix)
    for sentence in result.damage:
        print(f"farm: {sentence}", file=sys.stderr)
    if result.interrupted:
        print(f"Stopped early; to finish: farm sweep --resume {shlex.quote(str(result.run_folder))}", file=sys.stderr)
    print(f"Run kept in {result.run_folder} (report.html, report.md, matrix.json, junit.xml).", file=sys.stderr)
    if demo:
        print(
            f"A CI job would have got exit code {code} ({CODES.get(code, '?')}).",
            file=sys.stderr,
        )
        return 0 if code == 1 else code
    return code


def found_inventory(models: list[Path], devices: list[str], configs: list[str] | None) -> Any:
    """Return this machine and the ready phones, and say on stderr which those are, how much goes there and how long.

    None, and not a word, where this machine is all there is.
    """
    from farm.discovery import discover

    discovered = discover()
    if len(discovered.found) < 2:
        return None
    from farm.inventory import default_inventory
    from farm.plan import estimate
    from farm.prepare import prepare
    from farm.runtimes import find_runtime, host_platform

    inventory = discovered.inventory(default_inventory())
    plan = prepare(models=models, inventory=inventory, devices=devices or None, configs=configs)
    runtime = find_runtime(None, host_platform())
    sent = sum(size for _, size in runtime.files.values()) + sum(c.model_size_bytes for c in plan.cases)
    expected = estimate(plan, None)
    used = {d.id for d in plan.devices}
    for found in discovered.found:
        name = found.device.id
        if not found.ready:
            print(f"not used: {name} is {found.state}: {found.cure}", file=sys.stderr)
        elif name in used and found.device.transport != "local":
            megabytes = f"up to {sent / 1e6:.0f} MB go there and are removed at the end"
            print(f"found: {name}, about {expected[name]:.0f} s; {megabytes}", file=sys.stderr)
        elif name in used:
            print(f"found: {name}, about {expected[name]:.0f} s", file=sys.stderr)
    print(f"{len(plan.cells)} cells, about {expected.total_s:.0f} s in all ({expected.basis}).", file=sys.stderr)
    return inventory


def write_matrix(path: Path, matrix: Any) -> bool:
    """Write the matrix where --json-output says; where that fails say so, for the run itself is done and kept."""
    from farm import codec
    from farm.paths import write_named

    try:
        write_named(path, codec.to_json(matrix, indent=1))
    except OSError as error:
        kept = "the run's own matrix.json holds the same"
        print(f"farm: {path}: cannot be written: {error.strerror or error} ({kept})", file=sys.stderr)
        return False
    return True


def refuse_with_resume(context: click.Context) -> None:
    """A resumed run does what its plan says; raise InvalidInput naming every option that would contradict it."""
    kept = {"resume", "retry_infra", "json_output", "demo", "as_json", "verbose", "out"}
    given = [
        name
        for name, value in context.params.items()
        if name not in kept
        and value not in ((), None, False)
        and context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    ]
    if given:
        words = ", ".join(sorted(given))
        raise InvalidInput(
            Problem(message=f"--resume runs the kept plan, so {words} cannot be given with it", cure="leave them out")
        )


def check_writable(path: Path) -> None:
    """Raise InvalidInput before anything runs when a result file could not be written at the end."""
    import os

    folder = path.parent
    if os.path.isdir(path):
        raise InvalidInput(
            Problem(message="is a folder, not a file name", file=str(path), cure="--json-output takes a file name")
        )
    if not os.path.isdir(folder):
        raise InvalidInput(
            Problem(message="its folder does not exist", file=str(path), cure=f"mkdir -p {shlex.quote(str(folder))}")
        )
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise InvalidInput(
            Problem(message="cannot be written", file=str(path), cure="choose another place for --json-output")
        )
