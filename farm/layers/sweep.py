"""All layers of one model on one device: chunks of exposed tensors there and on this CPU, numbers per layer.

A chunk that does not compile, or that the delegate takes less of than of the plain model, is split in two and tried
again. The model's own outputs must stay what the plain run gave, bit for bit; else the sweep says it is perturbed and
its inner figures name nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farm.cases import Case
from farm.delegation import Delegation
from farm.errors import FarmError
from farm.layers.bench import Bench, Stored, outputs_of
from farm.layers.expose import chunks, expose
from farm.layers.health import Health, assess
from farm.layers.outputs import judged
from farm.layers.view import Layer, View
from farm.outcome import Failure
from farm.session import Observation

BUDGET_BYTES = 64 << 20
"""Activations exposed per run: copies and buffers take about three times this on a phone's GPU."""


class CannotStudy(FarmError):
    """There is nothing to compare: the model does not run on this device, or on this CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What a model is fed: per input set the sha256 of each signature input, and the shapes to resize to."""

    signature: int
    sets: tuple[tuple[str, ...], ...]
    shapes: tuple[tuple[int, ...] | None, ...] = ()

    @property
    def resized(self) -> bool:
        return any(s is not None for s in self.shapes)


@dataclass(slots=True, kw_only=True)
class Sweep:
    """What was seen. golden, seen: tensor → bytes; health: tensor → figures, own outputs from the plain run.

    unseen: tensor → why it could not be exposed. failed_chunks: chunks that did not compile and were split.
    perturbed: own outputs that exposing changed, by name.
    """

    input_set: int
    delegation: Delegation
    log: str = ""
    golden: dict[int, Stored] = field(default_factory=dict)
    seen: dict[int, Stored] = field(default_factory=dict)
    health: dict[int, Health] = field(default_factory=dict)
    unseen: dict[int, str] = field(default_factory=dict)
    chunks: int = 0
    failed_chunks: int = 0
    perturbed: list[str] = field(default_factory=list)
    still_bad: bool = False
    """Some own output was bad in a run with exposed tensors too: the fault was there to be watched."""


def sweep(
    case: Case,
    view: View,
    feed: Feed,
    device: Bench,
    host: Bench,
    *,
    low_precision: bool,
    budget_bytes: int = BUDGET_BYTES,
    reference: View | None = None,
) -> Sweep:
    """Watch every layer. The input set with the worst own outputs is the one studied.

    device and host share one object store. reference: what the host runs where that is not the model itself (same
    tensor indices). Raises CannotStudy when the plain model runs on either side not at all.
    """
    reference = reference or view
    plain_bytes = bytes(view.model.data)
    there = device.run("plain", plain_bytes, feed.sets, signature=feed.signature, shapes=feed.shapes)
    here = host.run(
        "plain", expose(reference, [], reference=True), feed.sets, signature=feed.signature, shapes=feed.shapes
    )
    for seen, where in ((there, f"on {device.session.device.id} ({device.config.name})"), (here, "on this CPU")):
        if seen.failure is not None or seen.result is None:
            raise CannotStudy(f"the model does not run {where}: {_said(seen.failure)}")
    work = _Work(
        case=case,
        view=view,
        reference=reference,
        feed=feed,
        device=device,
        host=host,
        low=low_precision,
        level=there.delegation.level,
    )
    found = work.plain(there, here)
    # Own outputs are already there; making them outputs once more could only change them.
    inner = [layer for layer in view.layers.values() if layer.own_output is None]
    for chunk in chunks(inner, budget_bytes):
        found.chunks += 1
        work.chunk(found, chunk)
    return found


@dataclass(slots=True, kw_only=True)
class _Work:
    case: Case
    view: View
    reference: View
    feed: Feed
    device: Bench
    host: Bench
    low: bool
    level: str
    own: dict[int, str] = field(default_factory=dict)
    """Signature output position → sha256 of the plain run on the device."""

    def plain(self, there: Observation, here: Observation) -> Sweep:
        """Compare own outputs over all input sets; keep the worst set."""
        assert there.result is not None
        assert here.result is not None
        own = {layer.own_output: layer for layer in self.view.layers.values() if layer.own_output is not None}
        worst: tuple[tuple[bool, float], Sweep] | None = None
        for number in range(len(self.feed.sets)):
            found = Sweep(input_set=number, delegation=there.delegation, log=there.log)
            pairs = zip(outputs_of(here.result, number), outputs_of(there.result, number), strict=True)
            for position, (golden, seen) in enumerate(pairs):
                if position in own:
                    self._add(found, own[position], golden, seen)
            figures = list(found.health.values())
            rank = (
                not any(h.bad for h in figures),
                min((h.snr_db if h.snr_db is not None else -999.0 for h in figures), default=0.0),
            )
            if worst is None or rank < worst[0]:
                worst = (rank, found)
        assert worst is not None
        found = worst[1]
        self.own = {i: o.sha256 for i, o in enumerate(outputs_of(there.result, found.input_set))}
        return found

    def chunk(self, found: Sweep, layers: Sequence[Layer]) -> None:
        """Expose and run one chunk on both sides; split what does not compile."""
        data = expose(self.view, layers, resized=self.feed.resized)
        sets = (self.feed.sets[found.input_set],)
        there = self.device.run("layers", data, sets, signature=self.feed.signature, shapes=self.feed.shapes)
        trouble = self._trouble(there)
        here: Observation | None = None
        if not trouble:
            same = expose(self.reference, layers, resized=self.feed.resized, reference=True)
            here = self.host.run("layers", same, sets, signature=self.feed.signature, shapes=self.feed.shapes)
            trouble = f"this CPU: {_said(here.failure)}" if here.failure is not None or here.result is None else ""
        if trouble:
            found.failed_chunks += 1
            if len(layers) == 1:
                found.unseen[layers[0].tensor] = trouble
                return
            half = len(layers) // 2
            self.chunk(found, layers[:half])
            self.chunk(found, layers[half:])
            return
        assert there.result is not None
        assert here is not None
        assert here.result is not None
        theirs, ours = outputs_of(there.result), outputs_of(here.result)
        base = len(self.own)
        for position, sha256 in self.own.items():
            name = self.view.model.signatures[self.feed.signature].outputs[position][0]
            if theirs[position].sha256 != sha256 and name not in found.perturbed:
                found.perturbed.append(name)
            own = next((la for la in self.view.layers.values() if la.own_output == position), None)
            if own is not None and not found.still_bad:
                found.still_bad = self._assess(own, ours[position], theirs[position]).bad
        for offset, layer in enumerate(layers):
            self._add(found, layer, ours[base + offset], theirs[base + offset])

    def _trouble(self, seen: Observation) -> str:
        if seen.failure is not None or seen.result is None:
            return _said(seen.failure)
        if self.level == "full" and seen.delegation.level != "full":
            return "with this tensor exposed the delegate no longer takes the whole graph"
        return ""

    def _add(self, found: Sweep, layer: Layer, golden: Stored, seen: Stored) -> None:
        t = layer.tensor
        try:
            found.health[t] = self._assess(layer, golden, seen)
        except KeyError as e:
            found.unseen[t] = f"its bytes cannot be read: {e}"
            return
        found.golden[t], found.seen[t] = golden, seen

    def _assess(self, layer: Layer, golden: Stored, seen: Stored) -> Health:
        ours, theirs = self.host.load(golden), self.device.load(seen)
        quantization = self.view.graph.tensors[layer.tensor].quantization
        health = assess(ours, theirs, low_precision=self.low, quantization=quantization)
        if layer.own_output is None:
            return health
        return judged(self.case, layer.own_output, ours, theirs, health, low=self.low)


def _said(failure: Failure | None) -> str:
    return "no result arrived" if failure is None else f"{failure.code}: {failure.message}"


def worst_first(view: View, health: Mapping[int, Health]) -> list[tuple[Layer, Health]]:
    """Layers by how bad they are: bad ones first, then by SNR, then in the order they run."""
    pairs = [(view.layers[t], h) for t, h in health.items()]
    return sorted(pairs, key=lambda p: (not p[1].bad, p[1].snr_db if p[1].snr_db is not None else -999.0, p[0].op))
