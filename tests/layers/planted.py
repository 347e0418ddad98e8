"""Graphs of healthy ops with one fault planted at a known op: the truth that naming is tested against.

Every graph is right in FP32. In FP16 the planted op overflows, underflows or loses its sum, and what follows brings
the values back to their size, so that the output is wrong and nothing but the planted op is to blame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.graphs import Graph

N = 16


@dataclass(frozen=True)
class Planted:
    data: bytes
    op: int
    """Index of the planted op."""
    tensor: str
    fault: str
    branch: bool


class _Grower:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.g = Graph(description="one fault planted")
        self.count = 0

    def tensor(self, width: int = N) -> int:
        self.count += 1
        return self.g.tensor(f"t{self.count}", (1, width))

    def const(self, array: np.ndarray) -> int:
        self.count += 1
        return self.g.const(f"c{self.count}", array.astype(np.float32))

    @property
    def ops(self) -> int:
        return len(self.g.sub.operators)

    def healthy(self, t: int, steps: int) -> int:
        """Ops that keep values near 1 and errors small."""
        makers: list[Callable[[int], int]] = [self.scaled, self.shifted, self.squashed, self.mixed, self.rectified]
        for _ in range(steps):
            t = makers[int(self.rng.integers(len(makers)))](t)
        return t

    def scaled(self, t: int) -> int:
        return self.g.op("MUL", [t, self.const(self.rng.uniform(0.8, 1.2, (1, N)))], [self.tensor()])

    def shifted(self, t: int) -> int:
        return self.g.op("ADD", [t, self.const(self.rng.uniform(-0.2, 0.2, (1, N)))], [self.tensor()])

    def squashed(self, t: int) -> int:
        return self.g.op("TANH", [t], [self.tensor()])

    def rectified(self, t: int) -> int:
        """|t| without an op that could hide half of the values."""
        return self.g.op("ABS", [t], [self.tensor()])

    def mixed(self, t: int) -> int:
        w = self.rng.standard_normal((N, N)) / np.sqrt(N)
        return self.g.op("FULLY_CONNECTED", [t, self.const(w), self.const(np.zeros(N))], [self.tensor()])

    def spread(self, t: int) -> int:
        """Values of 0.5 to 1.5: none so small that a fault could go unseen."""
        t = self.g.op("ABS", [self.g.op("TANH", [t], [self.tensor()])], [self.tensor()])
        return self.g.op("ADD", [t, self.const(np.full((1, N), 0.5))], [self.tensor()])

    def plant(self, t: int, fault: str) -> tuple[int, int]:
        """Tensor behind the fault and the op to blame."""
        g = self.g
        t = self.spread(t)
        if fault == "range":
            at = self.ops
            t = g.op("MUL", [t, self.const(np.float32([2e5]))], [self.tensor()])
            return g.op("MUL", [t, self.const(np.float32([5e-6]))], [self.tensor()]), at
        if fault == "underflow":
            t = g.op("MUL", [t, self.const(np.float32([1e-4]))], [self.tensor()])
            at = self.ops
            t = g.op("MUL", [t, t], [self.tensor()])
            t = g.op("MUL", [t, self.const(np.float32([1e4]))], [self.tensor()])
            return g.op("MUL", [t, self.const(np.float32([1e4]))], [self.tensor()]), at
        # Accumulation: products of up to 60000 that nearly cancel; FP16 keeps steps of 32 at that height.
        wide = g.op("CONCATENATION", [t] * 8, [self.tensor(8 * N)], axis=1)
        half = np.concatenate([np.full(4 * N, 600.0), np.full(4 * N, -600.0)])
        w = np.tile(half, (N, 1)) + self.rng.uniform(-1, 1, (N, 8 * N))
        at = self.ops
        return g.op("FULLY_CONNECTED", [wide, self.const(w), self.const(np.zeros(N))], [self.tensor()]), at


def planted(fault: str, seed: int, *, branch: bool, depth: int | None = None) -> Planted:
    """A graph with one fault, in one of two branches or in the trunk, at a depth drawn from the seed."""
    grow = _Grower(seed)
    t = grow.g.input("x", (1, N))
    t = grow.healthy(t, int(grow.rng.integers(0, 12)) if depth is None else depth)
    if not branch:
        t, at = grow.plant(t, fault)
    else:
        left = grow.healthy(t, int(grow.rng.integers(1, 6)))
        right = grow.healthy(t, int(grow.rng.integers(0, 6)))
        right, at = grow.plant(right, fault)
        right = grow.healthy(right, int(grow.rng.integers(0, 3)))
        t = grow.g.op("ADD", [left, right], [grow.tensor()])
    name = grow.g.sub.tensors[int(grow.g.sub.operators[at].outputs[0])].name
    t = grow.healthy(t, int(grow.rng.integers(1, 8)))
    return Planted(data=grow.g.finish([t]), op=at, tensor=name, fault=fault, branch=branch)


def healthy(seed: int, steps: int = 24) -> bytes:
    """The same kinds of ops without a fault."""
    grow = _Grower(seed)
    t = grow.healthy(grow.g.input("x", (1, N)), steps // 2)
    left, right = grow.healthy(t, steps // 4), grow.healthy(t, steps // 4)
    return grow.g.finish([grow.g.op("ADD", [left, right], [grow.tensor()])])
