"""farm compare: two sets of tensors from any pipelines into the same judge, or one set into a run as a column."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.cli._common import json_option, print_json, show, show_matrix
from farm.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from farm.compare import Comparison
    from farm.judge.verdict import CellVerdict

EPILOG = """\b
Examples:
  farm compare keras.npz tflite.npz --precision fp32
  farm compare expected/ got/ --kind mask=mask --kind emb=embedding --json
  farm compare app_dump/ --as-device pixel9-app --run runs/20250101T000000-ab12cd --model encoder --config gpu

\b
A and B are .npz, .safetensors, or folders of raw files with JSON (docs/compare.md); A is taken as right.
Exit codes: 0 pass or warn, 1 fail, 2 unusable, 3 no answer. With --as-device: those of farm judge."""


class _Kind(click.ParamType[tuple[str, str]]):
    """NAME=KIND."""

    name = "kind"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, separator, kind = str(value).rpartition("=")
        if not separator or not name or not kind:
            self.fail(f"'{value}' is not NAME=KIND", param, ctx)
        return name, kind


@click.command(epilog=EPILOG)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path), required=False)
@click.option("--kind", "kinds", type=_Kind(), multiple=True, metavar="NAME=KIND", help="What an output is: mask, ...")
@click.option("--precision", type=click.Choice(("fp32", "fp16")), help="Whose bands apply (default: unknown, so FP16).")
@click.option(
    "--spec", type=click.Path(path_type=Path), metavar="FILE", help="A NAME.farm.yaml: kinds, bands, assertions."
)
@click.option(
    "--min-cosine-similarity",
    "--min-cosine",
    type=click.FloatRange(-1, 1),
    metavar="X",
    help="Fail below, besides bands.",
)
@click.option("--as-device", metavar="NAME", help="Add the last set named to a run, as this device's column.")
@click.option("--run", type=click.Path(path_type=Path), metavar="RUN", help="The run, with --as-device.")
@click.option("--model", metavar="NAME", help="The run's model the tensors are of, with --as-device.")
@click.option("--config", metavar="NAME", help="The config they were made with, with --as-device.")
@click.option("--signature", metavar="KEY", help="The signature, where the model has several.")
@json_option
def command(
    a: Path,
    b: Path | None,
    kinds: tuple[tuple[str, str], ...],
    precision: str | None,
    spec: Path | None,
    min_cosine_similarity: float | None,
    as_device: str | None,
    run: Path | None,
    model: str | None,
    config: str | None,
    signature: str | None,
    as_json: bool,
) -> int:
    """Judge the tensors of B against those of A, or add A's to a run."""
    given = {"--run": run, "--model": model, "--config": config}
    if as_device is None:
        unused = [name for name, value in {**given, "--signature": signature}.items() if value is not None]
        if unused:
            raise InvalidInput(Problem(message=f"{', '.join(unused)} means nothing here", cure="add --as-device NAME"))
        if b is None:
            raise InvalidInput(
                Problem(message="there is nothing to compare with", cure="name B, or --as-device and --run")
            )
        return _compare(a, b, kinds, precision, spec, min_cosine_similarity, as_json)
    lacking = [name for name, value in given.items() if value is None]
    if lacking:
        raise InvalidInput(Problem(message=f"--as-device needs {', '.join(lacking)} too", cure="farm compare --help"))
    for name, used in (("--kind", kinds), ("--spec", spec), ("--min-cosine-similarity", min_cosine_similarity)):
        if used and b is None:
            raise InvalidInput(
                Problem(message=f"{name} means nothing with --as-device", cure="the run's own spec decides")
            )
    assert run is not None
    assert model is not None
    assert config is not None
    if b is not None:
        _compare(a, b, kinds, precision, spec, min_cosine_similarity, as_json=False)
    return _add(b or a, as_device, run, model, config, signature, precision, as_json)


def _compare(
    a: Path,
    b: Path,
    kinds: tuple[tuple[str, str], ...],
    precision: Any,
    spec: Path | None,
    min_cosine_similarity: float | None,
    as_json: bool,
) -> int:
    from farm.compare import compare
    from farm.specs import load_spec, spec_from
    from farm.tensors import open_tensors

    seen = compare(
        open_tensors(a),
        open_tensors(b),
        kinds=dict(kinds),
        precision=precision,
        spec=spec_from(load_spec(spec)[0], source=spec.name) if spec is not None else None,
        min_cosine_similarity=min_cosine_similarity,
    )
    if as_json:
        print_json(seen)
    else:
        _show(seen)
    return seen.exit_code


def _add(
    tensors: Path,
    device: str,
    run: Path,
    model: str,
    config: str,
    signature: str | None,
    precision: Any,
    as_json: bool,
) -> int:
    from farm.columns import add_column
    from farm.store import RunStore
    from farm.sweep import judge_run
    from farm.tensors import open_tensors

    store = RunStore.open(run)
    add_column(
        store,
        open_tensors(tensors),
        device=device,
        model=model,
        config=config,
        signature=signature,
        precision=precision,
    )
    matrix = judge_run(store)
    if as_json:
        print_json(matrix)
    else:
        show_matrix(matrix)
    return matrix.run.exit_code


def _show(seen: Comparison) -> None:
    from farm.report.words import visible

    show(f"A (taken as right): {visible(seen.a)}\nB: {visible(seen.b)}")
    for title, part in (("inputs", seen.inputs), ("layers", seen.layers), ("outputs", seen.outputs)):
        if part is not None:
            show(f"\n{title}\n{_table(part)}")
    for note in dict.fromkeys((*(seen.inputs.notes if seen.inputs else ()), *seen.outputs.notes)):
        show(f"note: {visible(note)}")
    if seen.only_in_b:
        show(f"note: only in B: {', '.join(visible(n) for n in seen.only_in_b)}")
    if seen.first_bad_layer is not None:
        show(f"first bad layer: {visible(seen.first_bad_layer)}")
    show(f"\n{seen.verdict.upper()}" + (f": {visible(seen.message)}" if seen.message else ""))


def _table(part: CellVerdict) -> str:
    from tabulate import tabulate

    from farm.report.words import visible

    return tabulate(
        [(visible(o.name), o.verdict, o.kind, visible(o.input_set), visible(o.message)) for o in part.outputs],
        headers=("tensor", "verdict", "kind", "worst set", "what was measured"),
        disable_numparse=True,
        maxcolwidths=[40, None, None, 20, 60],
    )
