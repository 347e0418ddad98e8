"""Deterministic, type-safe inputs in the natural range of what each input means; and inputs from the user's files.

The same model, seed and numpy give the same bytes on every machine: numpy's legacy generator, whose streams are frozen.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from farm.arrays import StoredArray, listed, open_arrays
from farm.errors import InvalidInput, Problem
from farm.graph import GraphFacts, InputFacts
from farm.input_roles import Meaning, meaning
from farm.tflite import Model, Signature

HIDDEN = -10000.0
"""What hides a position in an additive mask: far below any logit, and still a finite FP16 number."""

_INTEGERS = {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"}
_PACKED = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One input set, in the signature's input order. Arrays hold what goes to the runtime: little-endian, bfloat16 as
    uint16 bit patterns, int4 and int2 packed, strings in TFLite's own layout."""

    name: str
    arrays: tuple[np.ndarray, ...]
    recipes: tuple[str, ...]
    """How each array was made, for people."""


def make_input_sets(model: Model, signature: Signature, facts: GraphFacts, *, seed: int, count: int) -> list[Inputs]:
    """Draw `count` input sets for a signature; `facts.inputs` has the shapes to feed.

    Each array depends on the seed, the set's number and the input's name alone. Two sets differ unless no other input
    is possible (a table with one row). Raises InvalidInput where a type cannot be fed at all (resource, variant).
    """
    meanings = [meaning(model, signature, f) for f in facts.inputs]
    sets: list[Inputs] = []
    for k in range(count):
        made = None
        # A bool or a small id may come out the same by chance: draw again rather than compare a set with itself.
        for attempt in range(16):
            made = [_make(f, m, seed, k, attempt) for f, m in zip(facts.inputs, meanings, strict=True)]
            if not any(_same([a for a, _ in made], s.arrays) for s in sets):
                break
        assert made is not None
        sets.append(Inputs(name=f"seed{seed}-{k}", arrays=tuple(a for a, _ in made), recipes=tuple(r for _, r in made)))
    return sets


def _same(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def _make(facts: InputFacts, means: Meaning, seed: int, number: int, attempt: int) -> tuple[np.ndarray, str]:
    key = [seed, number, attempt, zlib.crc32(facts.name.encode("utf-8", "surrogatepass"))]
    rng = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(key)))  # legacy streams never change
    if facts.dtype == "string":
        return _strings(facts.shape, number), 'texts "farm 0", "farm 1", …'
    if facts.dtype in ("resource", "variant"):
        raise InvalidInput(f"input {facts.name!r} has the type {facts.dtype}, which cannot be fed from outside")
    values, recipe = _draw(facts, means, rng, number)
    return store(facts, values), f"{recipe}, seed {seed}, set {number}"


def _draw(facts: InputFacts, means: Meaning, rng: np.random.RandomState, number: int) -> tuple[np.ndarray, str]:
    """Real values (float64, or int64 for whole numbers) and how they were drawn."""
    shape, role = facts.shape, means.role
    if role in ("mask", "additive-mask"):
        kept = _prefix(shape, number)
        if role == "additive-mask":
            return np.where(kept > 0, 0.0, HIDDEN), f"0 to keep, {HIDDEN:g} to hide"
        return kept, "ones, then zeros"
    if role == "types":
        top = min(2, means.bound or 2)
        return np.sort(rng.randint(0, top, shape), axis=-1) if shape else rng.randint(0, top, shape), f"0..{top - 1}"
    if role == "positions":
        n = shape[-1] if shape else 1
        # A lone position moves with the set; a row of them counts up.
        row = np.arange(n) if n > 1 else np.array([number])
        return np.broadcast_to(np.minimum(row, (means.bound or 1 << 31) - 1), shape or (1,)).reshape(
            shape
        ), "0, 1, 2, …"
    if role == "ids":
        bound = min(means.bound or 1, 1 << 31)
        if facts.dtype in ("int8", "uint8"):
            bound = min(bound, 127)
        # Row 0 is padding in most vocabularies and may be all zero.
        low = 1 if bound > 2 else 0
        return rng.randint(low, bound, shape, dtype=np.int64), f"ids {low}..{bound - 1}"
    if facts.dtype == "bool":
        return rng.randint(0, 2, shape), "0 or 1"
    if facts.dtype.startswith("complex"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) * 0.5, "complex normal · 0.5"
    unit, what = _unit(role, shape, rng)
    if facts.mean and role == "image":
        mean, std = _per_channel(facts, shape)
        unit, what = (unit * 255 - mean) / std, f"{what}, 0..255 normalised as the model's metadata say"
        if facts.quantization is not None or facts.dtype not in _INTEGERS:
            return unit, what
        return rng.randint(0, 256, shape), "0..255"
    if facts.quantization is not None:
        # The range a tensor was quantised to is the range its data has.
        low_value, high_value = _range(facts)
        if role == "image":
            return low_value + unit * (high_value - low_value), f"{what} over the quantised range"
        middle, spread = (low_value + high_value) / 2, (high_value - low_value) / 6
        return middle + spread * rng.standard_normal(
            shape
        ), f"normal({middle:.4g}, {spread:.4g}) over the quantised range"
    if facts.dtype in _INTEGERS or facts.dtype in _PACKED:
        if role == "image":
            top = 127 if facts.dtype == "int8" else 255
            return np.floor(unit * top), f"{what}, times {top}"
        if role == "sound" and facts.dtype == "int16":
            return np.floor(unit * 32000), f"{what}, times 32000"
        top = {"int4": 8, "uint4": 16, "int2": 2}.get(facts.dtype, 10)
        return rng.randint(0, top, shape), f"0..{top - 1}"
    return unit, what


def _unit(role: str, shape: tuple[int, ...], rng: np.random.RandomState) -> tuple[np.ndarray, str]:
    if role == "image":
        # Patches with some noise: a net made for pictures hardly answers to plain noise.
        patch = [max(1, min(16, d // 4)) if d >= 8 else 1 for d in shape]
        coarse = rng.random_sample(tuple(math.ceil(d / p) for d, p in zip(shape, patch, strict=True)))
        for axis, (d, p) in enumerate(zip(shape, patch, strict=True)):
            coarse = np.repeat(coarse, p, axis=axis).take(range(d), axis=axis)
        return 0.75 * coarse + 0.25 * rng.random_sample(shape), "patches and noise in [0, 1]"
    if role == "sound":
        axis = max(range(len(shape)), key=lambda i: shape[i])
        t = np.arange(shape[axis]) / 16000
        wave = sum(0.15 * np.sin(2 * np.pi * rng.uniform(80, 3000) * t + rng.uniform(0, 6.28)) for _ in range(4)) * (
            0.6 + 0.4 * np.sin(2 * np.pi * rng.uniform(1, 4) * t)
        )
        return wave.reshape([-1 if i == axis else 1 for i in range(len(shape))]) + 0.02 * rng.standard_normal(
            shape
        ), "four tones and noise"
    return rng.standard_normal(shape) * 0.5, "normal(0, 0.5)"


def _prefix(shape: tuple[int, ...], number: int) -> np.ndarray:
    """Ones, then zeros along the last axis: all ones less an eighth in set 0, fewer in later ones, never under half."""
    n = shape[-1] if shape else 1
    ones = max(n - n // 8 - number * max(n // 8, 1), (n + 1) // 2) if n > 1 else 1
    row = (np.arange(n) < ones).astype(np.int64)
    return np.broadcast_to(row, shape or (1,)).reshape(shape)


def _per_channel(facts: InputFacts, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    mean, std = np.array(facts.mean), np.array(facts.std)
    if len(mean) == shape[-1] and len(std) == shape[-1]:
        return mean, std
    if len(mean) == shape[1] and len(std) == shape[1]:
        return mean.reshape(-1, 1, 1), std.reshape(-1, 1, 1)
    return mean[:1], std[:1]


def _limits(dtype: str) -> tuple[int, int]:
    if dtype in _PACKED:
        return _PACKED[dtype]
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _range(facts: InputFacts) -> tuple[float, float]:
    q = facts.quantization
    assert q is not None
    low, high = _limits(facts.dtype) if facts.dtype in _INTEGERS | _PACKED.keys() else (-128, 127)
    return q.scale[0] * (low - q.zero_point[0]), q.scale[0] * (high - q.zero_point[0])


def store(facts: InputFacts, values: np.ndarray) -> np.ndarray:
    """Real values as the tensor stores them: quantised, clipped to the type, packed."""
    q = facts.quantization
    if facts.dtype in _INTEGERS or facts.dtype in _PACKED:
        if q is not None and q.scale[0] > 0:
            values = np.rint(values / q.scale[0]) + q.zero_point[0]
        low, high = _limits(facts.dtype)
        # What is drawn fits in 63 bits, and numpy cannot clip int64 by a larger number.
        whole = np.clip(values, max(low, -(1 << 62)), min(high, 1 << 62))
        return (
            _pack(whole, facts.dtype)
            if facts.dtype in _PACKED
            else whole.astype(np.dtype(facts.dtype).newbyteorder("<"))
        )
    if facts.dtype == "bfloat16":
        bits = np.ascontiguousarray(values, "<f4").view("<u4")
        # Round to nearest, ties to even, on the upper half of a float32.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.asarray(rounded, "<u2").reshape(values.shape)
    if facts.dtype.startswith("float8"):
        raise InvalidInput(f"input {facts.name!r} has the type {facts.dtype}, which farm cannot make values of")
    return np.asarray(values).astype(np.dtype(facts.dtype).newbyteorder("<"))


def _pack(values: np.ndarray, dtype: str) -> np.ndarray:
    bits = 2 if dtype == "int2" else 4
    flat = values.astype(np.int64).reshape(-1) & ((1 << bits) - 1)
    flat = np.concatenate([flat, np.zeros(-len(flat) % (8 // bits), np.int64)]).reshape(-1, 8 // bits)
    return np.asarray((flat << (bits * np.arange(8 // bits))).sum(axis=1), np.uint8)


def _strings(shape: tuple[int, ...], number: int) -> np.ndarray:
    """TFLite's string layout: int32 count, count+1 int32 offsets from the start, then the bytes."""
    texts = [f"farm {number + i}".encode() for i in range(math.prod(shape))]
    offsets = np.cumsum([4 * (len(texts) + 2), *map(len, texts)])
    head = np.array([len(texts), *offsets], "<i4").tobytes()
    return np.frombuffer(head + b"".join(texts), np.uint8)


# --- the user's own ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInputs:
    """What one file gives one signature: sets if it fits, else problems. `used`: the keys that name an input of it."""

    sets: tuple[Inputs, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    used: frozenset[str] = frozenset()


def load_user_inputs(path: Path, model: Model, signature: Signature, facts: GraphFacts) -> UserInputs:
    """Fit a .npz or .safetensors file to a signature.

    Keys are input names, or in0, in1, … in subgraph order; `set/name` for several sets. Every input must be there with
    the type and shape it is fed with; values are only warned about. A file that cannot be read raises InvalidInput.
    """
    return fit(path, open_arrays(path), model, signature, facts)


def fit(
    path: Path, stored: Mapping[str, StoredArray], model: Model, signature: Signature, facts: GraphFacts
) -> UserInputs:
    """As load_user_inputs, for a file already opened."""
    named = _assign(stored, [f.name for f in facts.inputs])
    problems = [
        Problem(
            message=f"{clash!r} and {key!r} both give input {facts.inputs[i].name!r}", file=str(path), cure="keep one"
        )
        for i, key, clash in named.clashes
    ]
    sets: list[Inputs] = []
    warnings: list[str] = []
    for name, keys in named.sets.items():
        arrays: list[np.ndarray] = []
        recipes: list[str] = []
        for i, f in enumerate(facts.inputs):
            key = keys.get(i)
            wanted = f"{f.dtype} {list(f.shape)}"
            if key is None:
                problems.append(
                    Problem(
                        message=f"input {f.name!r} is missing" + (f" in set {name!r}" if name else ""),
                        file=str(path),
                        cure=f"add {wanted} under {_key(name, f.name)!r} or {_key(name, f'in{i}')!r}",
                    )
                )
                continue
            problem = _misfit(path, key, stored[key], f)
            if problem is not None:
                problems.append(problem)
            elif not problems:
                array = _as_stored(stored[key].read(), f)
                arrays.append(array)
                recipes.append(f"{key} of {path.name}")
                warnings += _doubts(f"{key!r} of {path.name}", array, f, meaning(model, signature, f))
        sets.append(Inputs(name=name or _slug(path.stem), arrays=tuple(arrays), recipes=tuple(recipes)))
    return UserInputs(
        sets=() if problems else tuple(sets),
        problems=tuple(problems),
        warnings=tuple(warnings),
        used=frozenset(k for keys in named.sets.values() for k in keys.values()) | {c for _, _, c in named.clashes},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assigned:
    sets: dict[str, dict[int, str]]
    """Set name ("" = no prefix) → input position → key."""
    clashes: list[tuple[int, str, str]]


def _assign(keys: Mapping[str, StoredArray], names: Sequence[str]) -> _Assigned:
    """Which input each key names. An input's own name counts before inN, and a longer name before a shorter one."""
    spellings = {f"in{i}": i for i in range(len(names))} | {n: i for i, n in enumerate(names)}
    sets: dict[str, dict[int, str]] = {}
    clashes: list[tuple[int, str, str]] = []
    for key in keys:
        found = ("", spellings[key]) if key in spellings else None
        if found is None:
            ends = [s for s in spellings if key.endswith("/" + s) and len(key) > len(s) + 1]
            if not ends:
                continue
            best = max(ends, key=len)
            found = (key[: -len(best) - 1], spellings[best])
        inputs = sets.setdefault(found[0], {})
        if found[1] in inputs:
            clashes.append((found[1], inputs[found[1]], key))
        else:
            inputs[found[1]] = key
    return _Assigned(sets=sets, clashes=clashes)


def _key(set_name: str, name: str) -> str:
    return f"{set_name}/{name}" if set_name else name


def _misfit(path: Path, key: str, array: StoredArray, facts: InputFacts) -> Problem | None:
    accepted = {"bfloat16": ("bfloat16", "uint16"), "int4": ("int8",), "uint4": ("uint8",), "int2": ("int8",)}
    if array.dtype not in accepted.get(facts.dtype, (facts.dtype,)):
        cure = f"numpy makes {array.dtype} by default; save it with .astype('{facts.dtype}')"
        return Problem(
            message=f"{key!r} is {array.dtype}; input {facts.name!r} takes {facts.dtype}",
            file=str(path),
            cure=cure if array.dtype in ("float64", "int64") else f"convert it to {facts.dtype}",
        )
    if array.shape == facts.shape:
        return None
    may = facts.shape_signature or facts.shape
    fits = len(may) == len(array.shape) and all(m in (-1, d) for m, d in zip(may, array.shape, strict=True))
    given = ",".join(map(str, array.shape))
    return Problem(
        message=f"{key!r} has shape {list(array.shape)}; input {facts.name!r} is fed with {list(facts.shape)}",
        file=str(path),
        cure=f"the model allows it: give --input-shape {facts.name}={given}"
        if fits and array.shape
        else f"save it with shape {list(facts.shape)}",
    )


def _as_stored(array: np.ndarray, facts: InputFacts) -> np.ndarray:
    if facts.dtype in _PACKED:
        return _pack(np.clip(array, *_PACKED[facts.dtype]), facts.dtype)
    return array.view("<u2") if facts.dtype == "bfloat16" else array


def _doubts(where: str, array: np.ndarray, facts: InputFacts, means: Meaning) -> list[str]:
    """Values that will hardly give a meaningful result; the run goes on, since that may be the very question."""
    said: list[str] = []
    if facts.dtype == "bfloat16":
        array = (array.astype("<u4") << 16).view("<f4")
    if array.dtype.kind in "fc" and array.size:
        nan, inf = int(np.isnan(array).sum()), int(np.isinf(array).sum())
        if nan or inf:
            said.append(f"{where} holds {nan} NaN and {inf} Inf; the reference will hardly be finite")
    if means.bound is not None and array.dtype.kind in "iu" and array.size and facts.dtype not in _PACKED:
        outside = int(((array < 0) | (array >= means.bound)).sum())
        if outside:
            said.append(
                f"{where} holds {outside} ids outside 0..{means.bound - 1}, the table input {facts.name!r} looks up"
            )
    return said


def unknown_keys(
    path: Path, stored: Mapping[str, StoredArray], used: frozenset[str], names: Sequence[str]
) -> list[Problem]:
    """A problem for every key that no signature took."""
    return [
        Problem(
            message=f"{key!r} names no input",
            file=str(path),
            cure=f"inputs: {listed(names)}, or in0, in1, … in their order; 'set/name' for several sets",
        )
        for key in stored
        if key not in used
    ]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip(".-_")[:60] or "user"
