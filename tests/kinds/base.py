"""What a kind is, and the small helpers its graphs are written with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from tests.graphs import Graph

F = np.float32
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One model. cpu, gpu, fp32: the verdicts that are right, words apart by spaces; gpu is for a GPU with FP16.

    reason: of a failing gpu cell on llvmpipe. fast: swept in every test run. inputs: key → array as in an .npz file;
    None has them generated. shapes: input name → shape to feed.
    """

    name: str
    make: Callable[[], bytes]
    cpu: str = "pass"
    gpu: str = "pass warn"
    fp32: str = "pass warn"
    reason: str = ""
    fast: bool = False
    inputs: Callable[[], Arrays] | None = None
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


def kind(**fields: Any) -> Callable[[Callable[[], bytes]], Kind]:
    """Make the decorated function, which returns a model's bytes, the Kind of its own name."""
    return lambda make: Kind(name=make.__name__, make=make, **fields)


def collect(*modules: ModuleType) -> dict[str, Kind]:
    """Every Kind of these modules by name, also those in tuples."""
    found = [v for m in modules for v in vars(m).values() if isinstance(v, (Kind, tuple))]
    kinds = [k for v in found for k in (v if isinstance(v, tuple) else (v,)) if isinstance(k, Kind)]
    assert len({k.name for k in kinds}) == len(kinds)
    return {k.name: k for k in kinds}


def R(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def k(g: Graph, name: str, values: Any) -> int:
    """A float32 constant."""
    return g.const(name, np.float32(values))


def un(op: str, shape: tuple[int, ...], scale: float | None = None, back: float | None = None, **options: Any) -> bytes:
    """op(x · scale) · back."""
    g = Graph()
    t = g.input("x", shape)
    if scale is not None:
        t = g.op("MUL", [t, k(g, "s", [scale])], [g.tensor("xs", shape)])
    t = g.op(op, [t], [g.tensor("u", shape)], **options)
    if back is not None:
        t = g.op("MUL", [t, k(g, "b", [back])], [g.tensor("y", shape)])
    return g.finish([t])


def red(
    op: str, shape: tuple[int, ...], axes: tuple[int, ...], out: tuple[int, ...], keep: bool = False,
    scale: float | None = None, back: float | None = None,
) -> bytes:  # fmt: skip
    """Reduction of x · scale over axes, times back."""
    g = Graph()
    t = g.input("x", shape)
    if scale is not None:
        t = g.op("MUL", [t, k(g, "s", [scale])], [g.tensor("xs", shape)])
    t = g.op(op, [t, g.ints("ax", *axes)], [g.tensor("r", out)], keepDims=keep)
    if back is not None:
        t = g.op("MUL", [t, k(g, "b", [back])], [g.tensor("y", out)])
    return g.finish([t])


def full(shape: tuple[int, ...], value: float, jitter: float = 0.01, seed: int = 0) -> np.ndarray:
    """Values within `jitter` (a share) of one value."""
    return (value * (1 + jitter * R(seed).uniform(-1, 1, shape))).astype(F)


def two(**arrays: np.ndarray) -> Arrays:
    """Two input sets: the arrays as given, and floats 3 % smaller."""
    out = {}
    for n, a in arrays.items():
        out[f"a/{n}"] = a
        out[f"b/{n}"] = (a * F(0.97)).astype(a.dtype) if a.dtype.kind == "f" else a
    return out


def I8(*shape: int, seed: int = 5) -> np.ndarray:
    return R(seed).integers(-127, 127, shape).astype(np.int8)
