"""From what the user names (files, specs, arrays) to cases: model + signature + input sets.

Bad input is refused here, all of it at once, before any device is touched.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from farm.arrays import StoredArray, listed, open_arrays
from farm.bundles import is_bundle, opened
from farm.defaults import Limits
from farm.errors import InvalidInput, Problem
from farm.graph import GraphFacts, graph_facts
from farm.inputs import Inputs, UserInputs, fit, make_input_sets, unknown_keys
from farm.paths import check_file, same_file_key
from farm.tflite import InvalidModel, Model, Signature, read_model
from farm.tflite_checks import BITS

if TYPE_CHECKING:
    from farm.objects import Objects

LARGEST_INPUT_BYTES = 1 << 30
"""Nobody feeds a phone more than this; a shape that asks for it is a slip or a hostile file."""

MEDIA = (
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".wav", ".txt", ".npy",
)  # fmt: skip
"""Files that are no arrays by name; preprocess.py makes inputs of them and is loaded for them alone."""

Origin = Literal["synthetic", "user"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputArray:
    """One array of an input set: raw little-endian bytes in the object store under `sha256`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    size_bytes: int
    recipe: str
    """How it was made, e.g. "normal(0, 0.5), seed 0" or "in0 of inputs.npz"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSet:
    name: str
    origin: Origin
    arrays: tuple[InputArray, ...]
    """In the signature's input order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a model spec (`NAME.farm.yaml` or a `models:` entry) says beyond the path; validated at its door.

    kinds: output name → kind. expect: config or "delegation"/"faster_than" → value.
    bands: output name or kind → limit name → value.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    expect: dict[str, str] = field(default_factory=dict)
    bands: dict[str, dict[str, float]] = field(default_factory=dict)
    source: str | None = None
    band_sources: dict[str, dict[str, str]] = field(default_factory=dict)
    """Where a limit in `bands` comes from, in the user's words; same keys."""
    min_cosine_similarity: float | None = None
    preprocess: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Input name ("*" = all) → how files become arrays; checked for its shape only and kept for the input reader."""
    assertions: tuple[dict[str, str], ...] = ()
    """Each {"check" or "function", "message", maybe "output"}; checked for its shape only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, one of its signatures and its input sets.

    id: filename-safe, unique within the run. model: the file stem, made unique within the run.
    invalid: why the file is damaged (then `graph` is None and no cell of it runs), or None.
    """

    id: str
    model: str
    model_path: str
    model_sha256: str
    model_size_bytes: int
    signature: int
    signature_key: str
    graph: GraphFacts | None
    input_sets: tuple[InputSet, ...]
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    """Per signature input: the shape to resize to, or None."""
    spec: Spec = field(default_factory=Spec)
    invalid: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One model as the user named it, on the command line or in a `models:` entry, its spec already validated.

    inputs: .npz / .safetensors files. input_shapes: input name or inN → shape. signature: key, or None for all of them.
    named_at: "inventory.yaml:12" or "command line", for messages.
    """

    path: Path
    spec: Spec = field(default_factory=Spec)
    inputs: tuple[Path, ...] = ()
    input_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    signature: str | None = None
    named_at: str = "command line"
    name: str | None = None
    """What reports call it; None = the file's stem. Set for a member of a bundle."""
    folder: Path | None = None
    """Where what the spec names beside the model is looked for; None = the model's own folder."""


def build_cases(requests: Sequence[ModelRequest], objects: Objects, limits: Limits) -> tuple[Case, ...]:
    """Read every model and make its cases: one per signature, or the one asked for, each with its input sets.

    Input arrays go to `objects`. A damaged model becomes one case that says so and never runs. Everything wrong with
    what was given, in all models, is raised as one InvalidInput.
    """
    problems: list[Problem] = []
    cases: list[Case] = []
    names, ids = _Unique(), _Unique()
    for request in _distinct(_opened(requests, objects, problems), problems):
        try:
            model: Model | None = read_model(request.path)
            invalid = None
        except InvalidInput as e:
            problems += e.problems
            continue
        except InvalidModel as e:
            model, invalid = None, e
        name = names.take(_printable(request.name or request.path.stem))
        if model is None:
            assert invalid is not None
            cases.append(_damaged(request, name, ids.take(_slug(name)), invalid))
            continue
        built = _Builder(request, model, objects, limits)
        made = built.cases(name, ids)
        problems += built.problems
        cases += made
    if problems:
        raise InvalidInput(problems)
    return tuple(cases)


def _opened(requests: Sequence[ModelRequest], objects: Objects, problems: list[Problem]) -> Iterator[ModelRequest]:
    """The requests with every bundle replaced by the models in it."""
    for request in requests:
        if not is_bundle(request.path):
            yield request
            continue
        try:
            yield from opened(request, objects)
        except InvalidInput as e:
            problems += e.problems


def _distinct(requests: Iterable[ModelRequest], problems: list[Problem]) -> Iterator[ModelRequest]:
    """Requests for different files or signatures; the same one twice is one, unless the two want different things."""
    seen: dict[tuple[str, str | None], ModelRequest] = {}
    for r in requests:
        key = (same_file_key(r.path), r.signature)
        other = seen.setdefault(key, r)
        if other is r:
            yield r
        elif (other.spec, other.inputs, other.input_shapes) != (r.spec, r.inputs, r.input_shapes):
            problems.append(
                Problem(
                    message=f"is named twice with different settings ({other.named_at} and {r.named_at})",
                    file=str(r.path),
                    cure="name it once",
                )
            )


def _damaged(request: ModelRequest, name: str, case_id: str, why: InvalidModel) -> Case:
    return Case(
        id=case_id,
        model=name,
        model_path=str(request.path),
        model_sha256=why.sha256,
        model_size_bytes=why.size_bytes,
        signature=0,
        signature_key=request.signature or "",
        graph=None,
        input_sets=(),
        spec=request.spec,
        invalid=str(why),
    )


class _Builder:
    """Makes the cases of one model; what is wrong collects in `problems`."""

    def __init__(self, request: ModelRequest, model: Model, objects: Objects, limits: Limits) -> None:
        self._request, self._model, self._objects, self._limits = request, model, objects, limits
        self.problems: list[Problem] = []

    def cases(self, name: str, ids: _Unique) -> list[Case]:
        signatures = self._signatures()
        if not signatures:
            return []
        self._check_spec(signatures)
        shapes = self._shapes(signatures)
        if self.problems:
            return []
        facts = {s.index: graph_facts(self._model, s.index, shapes[s.index]) for s in signatures}
        too_big = {s.index: self._too_big(facts[s.index]) for s in signatures}
        given, warnings = self._user_inputs([s for s in signatures if too_big[s.index] is None], facts)
        cases = []
        for s in signatures:
            case_id = ids.take(_slug(name) if len(signatures) == 1 else f"{_slug(name)}~{_slug(s.key)}")
            sets = () if self.problems or too_big[s.index] else self._input_sets(s, facts[s.index], given[s.index])
            cases.append(
                Case(
                    id=case_id,
                    model=name,
                    model_path=str(self._request.path),
                    model_sha256=self._model.sha256,
                    model_size_bytes=self._model.size_bytes,
                    signature=s.index,
                    signature_key=s.key,
                    graph=None if too_big[s.index] else facts[s.index],
                    input_sets=sets,
                    shapes=self._resized(s, facts[s.index]),
                    spec=self._request.spec,
                    invalid=too_big[s.index],
                    warnings=(*self._shape_warnings(s, facts[s.index], shapes[s.index]), *warnings[s.index]),
                )
            )
        return cases

    def _refuse(self, message: str, cure: str | None = None) -> None:
        self.problems.append(Problem(message=message, file=str(self._request.path), cure=cure))

    def _signatures(self) -> list[Signature]:
        key, every = self._request.signature, self._model.signatures
        if key is None:
            return list(every)
        chosen = [s for s in every if s.key == key][:1]
        if not chosen and every[0].key == "" and len(every) == 1:
            self._refuse(f"has no signatures, so there is none named {key!r}", "leave the signature out")
        elif not chosen:
            self._refuse(f"has no signature {key!r}", f"signatures: {listed(s.key for s in every)}")
        return chosen

    def _check_spec(self, signatures: Sequence[Signature]) -> None:
        outputs = [n for s in signatures for n, _ in s.outputs]
        for name in self._request.spec.kinds:
            if name not in outputs:
                self._refuse(
                    f"has no output {name!r}, which {self._request.spec.source or self._request.named_at} gives a kind",
                    f"outputs: {listed(dict.fromkeys(outputs))}",
                )
        for assertion in self._request.spec.assertions:
            wanted = assertion.get("output")
            if wanted is not None and wanted not in outputs:
                where = self._request.spec.source or self._request.named_at
                self._refuse(
                    f"has no output {wanted!r}, about which {where} asserts something",
                    f"outputs: {listed(dict.fromkeys(outputs))}",
                )

    def _shapes(self, signatures: Sequence[Signature]) -> dict[int, dict[str, tuple[int, ...]]]:
        """Signature index → input name → shape given for it."""
        shapes: dict[int, dict[str, tuple[int, ...]]] = {s.index: {} for s in signatures}
        for name, shape in self._request.input_shapes.items():
            if any(d < 1 for d in shape) or math.prod(shape) >= 1 << 31:
                self._refuse(f"--input-shape {name}: {list(shape)} is no usable shape", "give whole numbers from 1 up")
                continue
            found = [(s, i) for s in signatures for i in [_position(s, name)] if i is not None]
            if not found:
                names = dict.fromkeys(n for s in signatures for n, _ in s.inputs)
                self._refuse(
                    f"--input-shape names {name!r}, which is no input", f"inputs: {listed(names)}, or in0, in1, …"
                )
            ranks = {len(self._tensor_shape(s, i)) for s, i in found}
            if found and len(shape) not in ranks:
                self._refuse(
                    f"--input-shape {name}={','.join(map(str, shape))} has {len(shape)} dimensions",
                    f"the input has {' or '.join(map(str, sorted(ranks)))}",
                )
            for s, i in found:
                if len(self._tensor_shape(s, i)) == len(shape):
                    shapes[s.index][s.inputs[i][0]] = shape
        return shapes

    def _tensor_shape(self, s: Signature, position: int) -> tuple[int, ...]:
        return self._model.subgraphs[s.subgraph].tensors[s.inputs[position][1]].shape

    def _resized(self, s: Signature, facts: GraphFacts) -> tuple[tuple[int, ...] | None, ...]:
        """Shapes to resize to; None where the stored shape is fed."""
        return tuple(f.shape if f.shape != self._tensor_shape(s, i) else None for i, f in enumerate(facts.inputs))

    def _too_big(self, facts: GraphFacts) -> str | None:
        for f in facts.inputs:
            size = math.prod(f.shape) * BITS.get(f.dtype.upper(), 8) // 8
            if size > LARGEST_INPUT_BYTES:
                return f"input {f.name!r} with shape {list(f.shape)} takes {size} bytes; give a smaller --input-shape"
        return None

    def _shape_warnings(self, s: Signature, facts: GraphFacts, given: Mapping[str, tuple[int, ...]]) -> list[str]:
        said = []
        for i, f in enumerate(facts.inputs):
            stored, may = self._tensor_shape(s, i), f.shape_signature or self._tensor_shape(s, i)
            if f.name not in given:
                if any(m < 0 for m in may):
                    free = ",".join("?" if m < 0 else str(m) for m in may)
                    said.append(f"input {f.name!r} may change its shape ({free}); fed as {','.join(map(str, f.shape))}")
            elif any(m not in (-1, d) for m, d in zip(may, f.shape, strict=True)):
                said.append(
                    f"input {f.name!r} is fixed at {list(stored)} in the model; feeding {list(f.shape)} may fail"
                )
        return said

    def _user_inputs(
        self, signatures: Sequence[Signature], facts: Mapping[int, GraphFacts]
    ) -> tuple[dict[int, list[Inputs]], dict[int, list[str]]]:
        """Input sets and warnings by signature. A file serves every signature it fits; it must fit one."""
        given: dict[int, list[Inputs]] = {s.index: [] for s in self._model.signatures}
        warnings: dict[int, list[str]] = {s.index: [] for s in self._model.signatures}
        for path in self._request.inputs if signatures else ():
            if self._request.spec.preprocess or os.path.isdir(path) or path.suffix.lower() in MEDIA:
                self._add_files(path, signatures, facts, given, warnings)
                continue
            try:
                stored: dict[str, StoredArray] = open_arrays(path)
                fitted = {s.index: fit(path, stored, self._model, s, facts[s.index]) for s in signatures}
            except InvalidInput as e:
                self.problems += e.problems
                continue
            if not stored:
                for s in signatures:
                    warnings[s.index].append(f"{path.name} holds no arrays; inputs were generated")
                continue
            serving = [i for i, f in fitted.items() if f.sets]
            used = frozenset[str]().union(*(f.used for f in fitted.values()))
            names = dict.fromkeys(f.name for s in signatures for f in facts[s.index].inputs)
            self.problems += unknown_keys(path, stored, used, list(names))
            if not serving:
                # Of several signatures, the one it comes nearest to says what is wrong.
                near = sorted((f.problems for f in fitted.values() if f.used), key=len)
                self.problems += near[0] if near else ()
            for i in serving:
                given[i] += fitted[i].sets
                warnings[i] += fitted[i].warnings
        return given, warnings

    def _add_files(
        self,
        path: Path,
        signatures: Sequence[Signature],
        facts: Mapping[int, GraphFacts],
        given: dict[int, list[Inputs]],
        warnings: dict[int, list[str]],
    ) -> None:
        """Pictures, sound, text, or arrays with rules: they serve every signature they fit and must fit one."""
        from farm.preprocess import fit_files

        folder = self._request.folder or self._request.path.parent
        rules = self._request.spec.preprocess
        fitted: dict[int, UserInputs] = {}
        try:
            check_file(path)
            for s in signatures:
                fitted[s.index] = fit_files(path, self._model, s, facts[s.index], rules, (folder, Path.cwd()))
        except InvalidInput as e:
            self.problems += e.problems
            return
        if not any(f.sets for f in fitted.values()):
            self.problems += sorted((f.problems for f in fitted.values()), key=len)[0] if fitted else ()
        for index, found in fitted.items():
            given[index] += found.sets
            warnings[index] += found.warnings

    def _input_sets(self, s: Signature, facts: GraphFacts, given: Sequence[Inputs]) -> tuple[InputSet, ...]:
        try:
            made = given or make_input_sets(
                self._model, s, facts, seed=self._limits.seed, count=max(self._limits.input_sets, 1)
            )
        except InvalidInput as e:
            self._refuse(str(e), "leave the model out, or choose another signature")
            return ()
        names = _Unique()
        return tuple(
            InputSet(
                name=names.take(one.name),
                origin="user" if given else "synthetic",
                arrays=tuple(
                    InputArray(
                        name=f.name,
                        dtype=f.dtype,
                        shape=f.shape,
                        sha256=self._objects.put_bytes(data),
                        size_bytes=len(data),
                        recipe=recipe,
                    )
                    for f, array, recipe in zip(facts.inputs, one.arrays, one.recipes, strict=True)
                    for data in [array.tobytes()]
                ),
            )
            for one in made
        )


def _position(s: Signature, name: str) -> int | None:
    """Where an input stands: by its own name first, then as inN in subgraph order."""
    names = [n for n, _ in s.inputs]
    if name in names:
        return names.index(name)
    m = re.fullmatch(r"in(0|[1-9][0-9]{0,3})", name)
    return int(m[1]) if m and int(m[1]) < len(names) else None


class _Unique:
    """Gives each name once: a, a~2, a~3 …; upper and lower case count as the same, as some file systems do."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str) -> str:
        unique, n = name, 1
        while unique.casefold() in self._taken:
            n += 1
            unique = f"{name}~{n}"
        self._taken.add(unique.casefold())
        return unique


def _printable(stem: str) -> str:
    """A file stem as a name in reports: as it is but for control characters."""
    return "".join(c if c.isprintable() else "_" for c in stem) or "model"


def _slug(text: str) -> str:
    """A file name made of a name from outside: ASCII letters, digits, dot, dash and underscore, at most 80 of them."""
    return re.sub(r"[^A-Za-z0-9._~-]+", "_", text).strip(".-_~")[:80] or "x"
