"""One model on one device in one config, layer by layer: sweep, blame, confirmation. What the output formats read.

`study_device` is what `farm layers` calls per device; it keeps every tensor in a folder of its own that is gone
afterwards, but for the bundle of the named op.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.cases import Case
from farm.configs import CONFIGS, Config
from farm.defaults import Limits
from farm.errors import FarmError, InvalidInput, Problem
from farm.layers.bench import Bench
from farm.layers.confirm import Confirm, Confirmed, Label
from farm.layers.golden import mend_reductions, reference_view
from farm.layers.health import Health
from farm.layers.locate import Blame, Local, blame, forgive_masks
from farm.layers.sweep import BUDGET_BYTES, Feed, Sweep, sweep
from farm.layers.view import Layer, View, watch
from farm.layers.why import Reason, reasons
from farm.objects import Objects
from farm.outcome import PrecisionClass
from farm.plan import PlannedDevice
from farm.runtimes import Runtime
from farm.session import Session
from farm.tflite import Model, read_model
from farm.transports.base import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layer as seen."""

    layer: Layer
    health: Health
    masked: bool = False
    """Bad, and no output of the model suffers from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """An op to blame. confirmed: of the first one only."""

    layer: Layer
    health: Health
    confirmed: Confirmed | None
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What was found. error: why nothing was (then the rest is empty).

    runs: models run on the device, canaries not counted; most_runs: what they may be (see `allowed_runs`).
    """

    device: str
    config: str
    runtime: str = ""
    model: str
    model_sha256: str
    signature_key: str = ""
    input_set: str = ""
    precision_class: str = ""
    delegation: str = ""
    gpu: str = ""
    rows: tuple[Row, ...] = ()
    named: tuple[Named, ...] = ()
    accumulated: bool = False
    perturbed: tuple[str, ...] = ()
    unseen: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    most_runs: int = 0
    chunks: int = 0
    failed_chunks: int = 0
    error: str | None = None
    bundle: str | None = None
    graph_name: str = ""

    @property
    def first(self) -> Named | None:
        return self.named[0] if self.named else None


def allowed_runs(activation_bytes: int, budget_bytes: int, failed_chunks: int, ops: int, cuts: bool) -> int:
    """The most device runs a study takes: the plain one, the chunks, two per chunk that did not compile, one for the
    prefix and single-op test together, and a binary search's rounds where cuts are needed."""
    rounds = math.ceil(math.log2(max(ops, 2))) if cuts else 0
    return math.ceil(activation_bytes / budget_bytes) + 2 + 2 * failed_chunks + rounds


def open_model(case: Case) -> Model:
    """The case's model, once it is known that its layers can be watched. Raises InvalidInput."""
    path = Path(case.model_path)

    def refuse(message: str, cure: str) -> InvalidInput:
        return InvalidInput(Problem(message=message, file=str(path), cure=cure))

    if case.invalid is not None or case.graph is None:
        raise refuse(case.invalid or "cannot be read", "farm sweep tells more")
    if case.graph.stateful:
        raise refuse("keeps state between runs; its layers cannot be watched one run at a time", "freeze the state")
    if case.graph.random_ops:
        drawn = ", ".join(case.graph.random_ops)
        raise refuse(f"draws random numbers ({drawn}); two runs of it cannot be compared", "feed them as an input")
    return read_model(path)


@dataclass(slots=True, kw_only=True)
class Lab:
    """An open device and this host's CPU beside it, sharing one object store."""

    session: Session
    host: Session
    runtime: Runtime
    host_runtime: Runtime
    folder: Path
    budget_bytes: int = BUDGET_BYTES
    say: Callable[[str], None] = lambda _: None

    def study(
        self, case: Case, model: Model, config: Config, precision_class: str, bundles: Path | None = None
    ) -> Study:
        """Study one config. Raises FarmError where the model runs not at all, or the device is lost."""
        view = watch(model, case.signature)
        low = precision_class != "fp32"
        fed = tuple(tuple((a.sha256, a.dtype, a.shape) for a in s.arrays) for s in case.input_sets)
        device = Bench(session=self.session, runtime=self.runtime, config=config, folder=self.folder, fed=fed)
        host = Bench(session=self.host, runtime=self.host_runtime, config=CONFIGS["cpu"], folder=self.folder)
        feed = Feed(
            signature=case.signature,
            sets=tuple(tuple(a.sha256 for a in s.arrays) for s in case.input_sets),
            shapes=case.shapes,
        )
        self.say(f"{self.session.device.id} {config.name}: {len(view.layers)} layers")
        reference = reference_view(case, model, view, self.folder)
        seen = sweep(
            case, view, feed, device, host, low_precision=low, budget_bytes=self.budget_bytes, reference=reference
        )
        mend_reductions(case, view, seen, host, low_precision=low)
        test = Confirm(
            case=case,
            view=view,
            feed=feed,
            sweep=seen,
            device=device,
            host=host,
            low_precision=low,
            reference=reference,
        )
        found, confirmed, cuts = _name(view, seen, test)
        delegation = seen.delegation
        named = tuple(
            Named(
                layer=view.layers[t],
                health=seen.health[t],
                confirmed=confirmed if i == 0 else None,
                reasons=reasons(
                    view,
                    view.layers[t],
                    seen.health,
                    label=confirmed.label if i == 0 and confirmed is not None else "intrinsic",
                    low_precision=low,
                    delegation=delegation,
                ),
            )
            for i, t in enumerate(found.sources)
        )
        inner = sum(la.size_bytes for la in view.layers.values() if la.own_output is None)
        result = Study(
            device=self.session.device.id,
            config=config.name,
            runtime=self.runtime.name,
            model=case.model,
            model_sha256=case.model_sha256,
            signature_key=case.signature_key,
            input_set=case.input_sets[seen.input_set].name,
            precision_class=precision_class,
            delegation=delegation.level,
            gpu=str(delegation.adapter or self.session.facts.get("gpu") or ""),
            rows=_rows(view, seen, found),
            named=named,
            accumulated=found.accumulated,
            perturbed=tuple(seen.perturbed),
            unseen={view.layers[t].name: why for t, why in seen.unseen.items()},
            skipped=view.skipped,
            runs=device.runs,
            most_runs=allowed_runs(
                inner, self.budget_bytes, seen.failed_chunks + test.failed_cuts, len(view.graph.ops), cuts
            ),
            chunks=seen.chunks,
            failed_chunks=seen.failed_chunks,
            graph_name=view.graph.name,
        )
        if bundles is not None and named:
            from farm.layers.bundle import write_bundle

            return write_bundle(bundles, result, view, seen, device, host, self.session.facts)
        return result


def _name(view: View, seen: Sweep, test: Confirm) -> tuple[Blame, Confirmed | None, bool]:
    """Blame, its confirmation, and whether cuts were needed."""
    checks: dict[int, Local] = {}

    def check(tensors: Sequence[int]) -> dict[int, Local]:
        checks.update(test.locally(tensors))
        return checks

    own_bad = [t for t, h in seen.health.items() if h.bad and view.layers[t].own_output is not None]
    if not own_bad:
        return blame(view, seen.health, check), None, False
    tested = False
    if not seen.perturbed or seen.still_bad:
        tested = True
        found = blame(view, seen.health, check)
        confirmed = test.named(found.sources[0], found.accumulated, checks.get(found.sources[0]))
        # What exposing changed still counts where the untouched prefix shows the same fault. Where no prefix can be run
        # cuts could not tell more either.
        if not seen.perturbed or confirmed.prefix is None or confirmed.prefix.bad:
            return found, confirmed, False
    target = min(own_bad, key=lambda t: view.layers[t].op)
    first = test.first_bad_cut(target)
    found = Blame(sources=(first,), accumulated=False, masked=())
    if not tested:
        return found, test.named(first, False, None), True
    # The one prefix and single-op run is spent; the cuts themselves are what is known.
    label: Label = "context-dependent" if first == target else "unconfirmed"
    return found, Confirmed(label=label, single=None, prefix=None, note="found by cuts alone"), True


def _rows(view: View, seen: Sweep, found: Blame) -> tuple[Row, ...]:
    health = forgive_masks(view, seen.health)
    return tuple(
        Row(layer=layer, health=health[layer.tensor], masked=layer.tensor in found.masked)
        for layer in view.layers.values()
        if layer.tensor in health
    )


def study_device(
    device: PlannedDevice,
    case: Case,
    model: Model,
    configs: Sequence[Config],
    *,
    limits: Limits,
    inputs: Objects,
    connect: Callable[[PlannedDevice], Transport],
    measure: Callable[[Session, Sequence[tuple[Config, Runtime]]], Sequence[PrecisionClass]],
    runtime: str | None = None,
    budget_bytes: int = BUDGET_BYTES,
    bundles: Path | None = None,
    find_agent: Callable[[str], Path] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Study]:
    """Study every config on one device. A device or model that fails gives a Study that says so, never an exception.

    inputs: the object store that holds the case's input arrays. connect, measure: the link to a device and the class of
    its configs (runner.open_transport, canary.measure_device).
    """
    from farm.runtimes import find_runtime, host_platform

    def failed(config: Config, why: str) -> Study:
        return Study(device=device.id, config=config.name, model=case.model, model_sha256=case.model_sha256, error=why)

    more: dict[str, Any] = {} if find_agent is None else {"find_agent": find_agent}
    with tempfile.TemporaryDirectory(prefix="litert-farm-layers-") as tmp:
        objects = Objects(Path(tmp) / "objects")
        for one in case.input_sets:
            for array in one.arrays:
                objects.put_bytes(inputs.path(array.sha256).read_bytes())
        here = PlannedDevice(id="reference", transport="local")
        opened: list[Session] = []
        try:
            for planned in (device, here):
                session = Session(device=planned, transport=connect(planned), objects=objects, limits=limits, **more)
                opened.append(session)  # even a visit that fails half-way may have to be left
                session.open()
            lab = Lab(
                session=opened[0],
                host=opened[1],
                runtime=find_runtime(runtime, opened[0].platform),
                host_runtime=find_runtime(None, host_platform()),
                folder=Path(tmp),
                budget_bytes=budget_bytes,
                say=say,
            )
            measured = measure(opened[0], [(config, lab.runtime) for config in configs])
            classes = {one.config: one.value for one in measured}
        except FarmError as e:
            for session in opened:
                session.leave()
            yield from (failed(config, str(e)) for config in configs)
            return
        try:
            for config in configs:
                yield _one(lab, case, model, config, classes[config.name], bundles, failed)
        finally:
            for session in opened:
                session.leave()


def _one(
    lab: Lab,
    case: Case,
    model: Model,
    config: Config,
    precision_class: str,
    bundles: Path | None,
    failed: Callable[[Config, str], Study],
) -> Study:
    try:
        return lab.study(case, model, config, precision_class, bundles)
    except FarmError as e:
        return failed(config, str(e))
