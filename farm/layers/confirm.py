"""Runs that test a suspicion: ops alone on this CPU, the named op alone and at the end of its prefix on the device.

A prefix and an island share one file, and so one run; only where that does not compile are they run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from farm.cases import Case
from farm.layers.bench import Bench, Stored, outputs_of
from farm.layers.cut import CutModel, Part, cut, island, prefix
from farm.layers.health import Health, assess
from farm.layers.locate import Local
from farm.layers.outputs import judged
from farm.layers.sweep import Feed, Sweep
from farm.layers.view import View

Label = Literal["intrinsic", "context-dependent", "accumulated", "unconfirmed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """single: the op alone on the CPU's inputs. prefix: the op as the last of all that leads to it. None: not run."""

    label: Label
    single: Health | None
    prefix: Health | None
    note: str = ""
    single_seen: Stored | None = None


@dataclass(slots=True, kw_only=True)
class Confirm:
    """The tests of one sweep."""

    case: Case
    view: View
    feed: Feed
    sweep: Sweep
    device: Bench
    host: Bench
    low_precision: bool
    reference: View
    """What the host computes with: the model, or its float copy."""
    failed_cuts: int = 0
    """Files with prefix and island in one that did not run and were tried apart."""

    def locally(self, tensors: Sequence[int]) -> dict[int, Local]:
        """Compute the ops of tensors on this CPU from the device's values. What cannot be computed is left out."""
        known = frozenset(self.sweep.seen)
        parts = {}
        for t in tensors:
            part = island(self.reference, self.view.layers[t].op, known, f"local{t}")
            if part is not None:
                parts[t] = part
        return self._local(parts)

    def _local(self, parts: Mapping[int, Part]) -> dict[int, Local]:
        if not parts:
            return {}
        made = cut(self.reference, list(parts.values()), reference=True)
        outputs = self._run(self.host, made, self.sweep.seen)
        if outputs is None:
            if len(parts) == 1:
                return {}
            items = list(parts.items())
            half = len(items) // 2
            return {**self._local(dict(items[:half])), **self._local(dict(items[half:]))}
        found = {}
        for t, part in parts.items():
            computed = outputs[(part.tag, t)]
            if computed.shape == self.sweep.seen[t].shape:
                found[t] = Local(
                    local=self._health(t, computed, self.sweep.seen[t]),
                    inherited=self._health(t, self.sweep.golden[t], computed),
                )
        return found

    def named(self, tensor: int, accumulated: bool, check: Local | None) -> Confirmed:
        """One prefix and one single-op run of the op that writes `tensor`, on the device."""
        op = self.view.layers[tensor].op
        whole = prefix(self.view, op, [tensor], "prefix")
        alone = island(self.view, op, frozenset(self.sweep.golden), "single")
        parts = [p for p in (whole, alone) if p is not None]
        if not parts:
            return Confirmed(
                label="unconfirmed", single=None, prefix=None, note="the op cannot be cut out of its graph"
            )
        outputs, note = self._together(parts)
        stored = {tag: outputs.get((tag, tensor)) for tag in ("prefix", "single")}
        health = {
            tag: None if seen is None else self._health(tensor, self.sweep.golden[tensor], seen)
            for tag, seen in stored.items()
        }
        label = _label(health["single"], health["prefix"], accumulated, check)
        return Confirmed(
            label=label, single=health["single"], prefix=health["prefix"], note=note, single_seen=stored["single"]
        )

    def _together(self, parts: list[Part]) -> tuple[dict[tuple[str, int], Stored], str]:
        outputs = self._run(self.device, cut(self.view, parts), self.sweep.golden)
        if outputs is not None or len(parts) == 1:
            return outputs or {}, "" if outputs is not None else f"the {parts[0].tag} run did not compile"
        self.failed_cuts += 1
        found: dict[tuple[str, int], Stored] = {}
        notes = []
        for part in parts:
            one = self._run(self.device, cut(self.view, [part]), self.sweep.golden)
            found.update(one or {})
            if one is None:
                notes.append(f"the {part.tag} run did not compile")
        return found, "; ".join(notes)

    def first_bad_cut(self, target: int, report: Callable[[int], None] = lambda _: None) -> int:
        """Binary search over prefixes for the first op whose prefix is bad; the tensor it writes.

        Each cut takes all ops that lead to `target` up to one point and looks at the tensors nobody reads yet. When
        every cut but the last is good the answer is `target` itself. report: told of each round.
        """
        ops, _ = self.view.walk.ancestors(target)
        steps = sorted(
            (t for t in self.sweep.golden if self.view.layers[t].op in ops), key=lambda t: self.view.layers[t].op
        )
        low, high = -1, len(steps) - 1
        rounds = 0
        while high - low > 1:
            middle = (low + high) // 2
            rounds += 1
            report(rounds)
            if self._cut_is_bad(steps[: middle + 1]):
                high = middle
            else:
                low = middle
        return steps[high]

    def _cut_is_bad(self, steps: Sequence[int]) -> bool:
        """A cut that does not compile says nothing and counts as good: the search then goes on behind it."""
        inside = set(steps)
        leaves = [t for t in steps if not any(c in inside for c in self.view.layers[t].consumers)]
        parts = []
        for t in leaves:
            part = prefix(self.view, self.view.layers[t].op, [t], "cut")
            if part is not None:
                parts.append(part)
        if not parts:
            return False
        joined = Part(
            tag="cut",
            ops=tuple(sorted({o for p in parts for o in p.ops})),
            inputs=tuple(t for t in self.view.graph.inputs if any(t in p.inputs for p in parts)),
            outputs=tuple(leaves),
        )
        outputs = self._run(self.device, cut(self.view, [joined]), self.sweep.golden)
        if outputs is None:
            return False
        return any(self._health(t, self.sweep.golden[t], outputs[("cut", t)]).bad for t in leaves)

    def _run(self, bench: Bench, made: CutModel, values: Mapping[int, Stored]) -> dict[tuple[str, int], Stored] | None:
        """Outputs by (tag, tensor), or None where it does not run as a whole."""
        fed = self.feed.sets[self.sweep.input_set]
        given = {t: fed[i] for i, (_, t) in enumerate(self.view.model.signatures[self.feed.signature].inputs)}
        shapes: list[tuple[int, ...] | None] = []
        files = []
        own = self.feed.shapes or (None,) * len(fed)
        for _, t in made.inputs:
            if t in given:
                files.append(given[t])
                position = [i for _, i in self.view.model.signatures[self.feed.signature].inputs].index(t)
                shapes.append(own[position])
            else:
                files.append(values[t].sha256)
                stored = self.view.graph.tensors[t].shape
                shapes.append(values[t].shape if values[t].shape != stored else None)
        seen = bench.run("cut", made.data, (tuple(files),), shapes=tuple(shapes))
        if seen.failure is not None or seen.result is None:
            return None
        return dict(zip(made.outputs, outputs_of(seen.result), strict=True))

    def _health(self, t: int, golden: Stored, seen: Stored) -> Health:
        ours, theirs = self.host.load(golden), self.host.load(seen)
        quantization = self.view.graph.tensors[t].quantization
        health = assess(ours, theirs, low_precision=self.low_precision, quantization=quantization)
        own = self.view.layers[t].own_output
        return health if own is None else judged(self.case, own, ours, theirs, health, low=self.low_precision)


def _label(single: Health | None, prefix: Health | None, accumulated: bool, check: Local | None) -> Label:
    if single is not None and single.bad:
        return "intrinsic"
    if single is None and prefix is None:
        return "unconfirmed"
    if accumulated and (prefix is None or prefix.bad):
        return "accumulated"
    if single is None:
        return "unconfirmed" if prefix is not None and prefix.bad else "context-dependent"
    inherited = check is not None and not check.local.bad
    if prefix is not None and prefix.bad and inherited:
        return "accumulated"
    return "context-dependent"
