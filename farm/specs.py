"""Model specs: `NAME.farm.yaml` beside a model and the entries of `models:` become ModelRequests for cases.py.

A spec says what cannot be read from a model: kinds of outputs, inputs, shapes, bands, what to expect. Every problem of
every spec is reported at once, with file and line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from farm.cases import ModelRequest, Spec
from farm.configs import CONFIGS
from farm.errors import InvalidInput, Problem
from farm.paths import same_file_key

if TYPE_CHECKING:
    from farm.doors.spec import SpecDoor
    from farm.yaml_lines import YamlFile

SUFFIX = ".farm.yaml"
T = TypeVar("T")


def spec_path(model: Path) -> Path:
    """Return where the spec of a model would lie: `dir/NAME.farm.yaml` for `dir/NAME.tflite`."""
    return model.with_name(model.stem + SUFFIX)


def model_requests(
    paths: Iterable[str | Path],
    *,
    inputs: Sequence[Path] = (),
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    signature: str | None = None,
    configs: Iterable[str] = CONFIGS,
) -> tuple[ModelRequest, ...]:
    """Turn models named on the command line (or a `NAME.farm.yaml` itself) into requests, with the specs beside them.

    What is given here wins over the specs. `configs`: names a spec may mention in `expect`. Whether the models exist
    is for build_cases to say. Raises InvalidInput with every problem of every spec.
    """
    problems: list[Problem] = []

    def one(path: Path) -> ModelRequest | None:
        try:
            return request(
                path,
                inputs=tuple(inputs),
                input_shapes=dict(input_shapes or {}),
                signature=signature,
                configs=tuple(configs),
            )
        except InvalidInput as e:
            problems.extend(e.problems)
            return None

    found = [one(Path(path)) for path in paths]
    if problems:
        raise InvalidInput(problems)
    return tuple(r for r in found if r is not None)


def request(
    path: Path,
    *,
    inputs: tuple[Path, ...] = (),
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    signature: str | None = None,
    configs: tuple[str, ...] = tuple(CONFIGS),
    entry: tuple[SpecDoor, YamlFile, tuple[str | int, ...]] | None = None,
    named_at: str = "command line",
) -> ModelRequest:
    """Make one request: the spec beside the model, over it `entry` (an inventory's own words), over it the arguments.

    Raises InvalidInput with every problem of the spec beside the model and of the files `entry` names.
    """
    model, beside = _model_and_spec(path)
    layers: list[tuple[SpecDoor, YamlFile, tuple[str | int, ...]]] = []
    if beside is not None:
        door, file = load_spec(beside, configs=configs)
        model = _named_model(model, path, beside, door, file)
        layers.append((door, file, ()))
    if entry is not None:
        layers.append(entry)
    problems: list[Problem] = []
    spec_inputs: tuple[Path, ...] = ()
    shapes: dict[str, tuple[int, ...]] = {}
    key = None
    spec = Spec()
    for door, file, at in layers:
        if door.inputs:
            spec_inputs = tuple(_input_files(door, file, at, problems))
        shapes.update({name: tuple(shape) for name, shape in door.input_shapes.items()})
        key = door.signature if door.signature is not None else key
        source = f"{file.path.name}:{file.line(at)}" if at else file.path.name
        spec = _over(spec, spec_from(door, source=source))
    if problems:
        raise InvalidInput(problems)
    return ModelRequest(
        path=model,
        spec=spec,
        inputs=inputs or spec_inputs,
        input_shapes={**shapes, **(input_shapes or {})},
        signature=signature if signature is not None else key,
        named_at=named_at,
    )


def load_spec(path: Path, *, configs: Iterable[str] = CONFIGS) -> tuple[SpecDoor, YamlFile]:
    """Read and check one spec file. Raises InvalidInput with every problem and its line."""
    from pydantic import ValidationError

    from farm.doors.base import problems
    from farm.doors.spec import SpecDoor
    from farm.yaml_lines import read_yaml

    file = read_yaml(path, "model spec")
    try:
        door = SpecDoor.model_validate(file.data, context={"configs": tuple(configs)})
    except ValidationError as e:
        raise InvalidInput(problems(e, SpecDoor, file)) from e
    if file.problems:
        raise InvalidInput(file.problems)
    return door, file


def spec_from(door: SpecDoor, *, source: str) -> Spec:
    """Return a checked door as plain data. `source` names where it was written, for reports."""
    sourced = {w: {n: lim.source for n, lim in lims.items() if lim.source} for w, lims in door.bands.items()}
    return Spec(
        kinds=dict(door.kind),
        expect=dict(door.expect),
        bands={where: {n: lim.value for n, lim in limits.items()} for where, limits in door.bands.items()},
        band_sources={where: sources for where, sources in sourced.items() if sources},
        min_cosine_similarity=door.min_cosine_similarity,
        preprocess={name: p.model_dump(exclude_none=True) for name, p in door.preprocess.items()},
        assertions=tuple(a.model_dump(exclude_none=True) for a in door.assertions),
        source=source,
    )


def _model_and_spec(path: Path) -> tuple[Path, Path | None]:
    if not path.name:
        return path, None  # "", "." or "/": the model reader says what is wrong with it
    if path.name.endswith(SUFFIX):
        return path.with_name(path.name.removesuffix(SUFFIX) + ".tflite"), path
    beside = spec_path(path)
    return path, beside if os.path.isfile(beside) else None  # Path.is_file raises where a folder is locked


def _named_model(model: Path, named: Path, spec: Path, door: SpecDoor, file: YamlFile) -> Path:
    """Return the model a spec is for; its `path` may not contradict the model it lies beside."""
    if door.path is None:
        return model
    meant = spec.parent / door.path
    if named.name.endswith(SUFFIX):
        return meant
    if same_file_key(meant) != same_file_key(model):
        raise InvalidInput(
            Problem(
                message=f"this spec lies beside {model.name} but its 'path' names {door.path!r}",
                file=str(file.path),
                line=file.line(("path",)),
                cure="remove 'path', or rename the spec after the model it is for",
            )
        )
    return model


def _input_files(door: SpecDoor, file: YamlFile, at: tuple[str | int, ...], problems: list[Problem]) -> Iterable[Path]:
    for i, name in enumerate(door.inputs):
        path = file.path.parent / name
        if os.path.isfile(path) or os.path.isdir(path):
            yield path
        else:
            problems.append(
                Problem(
                    message=f"there is no input file {name!r}",
                    file=str(file.path),
                    line=file.line((*at, "inputs", i)),
                    cure=f"paths are relative to {file.path.name}",
                )
            )


def _over(below: Spec, above: Spec) -> Spec:
    """Return `below` with what `above` says laid over it, key by key."""
    cosine = above.min_cosine_similarity
    return Spec(
        kinds={**below.kinds, **above.kinds},
        expect={**below.expect, **above.expect},
        bands=_deep(below.bands, above.bands),
        band_sources=_deep(_without(below.band_sources, above.bands), above.band_sources),
        min_cosine_similarity=cosine if cosine is not None else below.min_cosine_similarity,
        preprocess={**below.preprocess, **above.preprocess},
        assertions=(*below.assertions, *above.assertions),
        source=f"{below.source} + {above.source}" if below.source else above.source,
    )


def _deep(below: dict[str, dict[str, T]], above: dict[str, dict[str, T]]) -> dict[str, dict[str, T]]:
    return {name: {**below.get(name, {}), **above.get(name, {})} for name in (*below, *above)}


def _without(sources: dict[str, dict[str, str]], replaced: dict[str, dict[str, float]]) -> dict[str, dict[str, str]]:
    """Drop the sources of limits that get a new value: a source belongs to its value."""
    return {
        where: kept
        for where, names in sources.items()
        if (kept := {n: s for n, s in names.items() if n not in replaced.get(where, {})})
    }
