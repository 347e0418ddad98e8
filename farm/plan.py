"""inventory × cases × configs × runtimes → ordered cells. Pure: touches no device and no file."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from farm.cases import Case
from farm.configs import Config
from farm.defaults import Limits

APP = "app"
"""Transport of a device whose tensors came from inside an app: nothing connects to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """What the run needs to know of a device from the inventory."""

    id: str
    transport: str
    address: dict[str, str] = field(default_factory=dict)
    """Transport's own keys, all optional: serial, host, via, adb_server; ssh: how to reach the host `via` names."""
    env: dict[str, str] = field(default_factory=dict)
    profile: str | None = None
    tags: tuple[str, ...] = ()
    transient: bool = False
    """Found by discovery, in no inventory: farm leaves nothing on it."""
    lock: tuple[str, ...] = ()
    usb_reset: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()
    """Commands of the lab, run here as argv: see inventory.DeviceOptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The unit of work and of the matrix. `id` is filename-safe and unique within the run."""

    id: str
    device: str
    case: str
    config: str
    runtime: str
    """Runtime name as in `farm runtime list`, e.g. "litert-2.3.0"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An expected result (inventory `known:`): globs over model, device and config."""

    model: str = "*"
    device: str = "*"
    config: str = "*"
    verdict: str
    reason: str | None = None
    link: str | None = None
    until: str | None = None
    """ISO date; from the day after on the entry no longer counts and is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """plan.json: everything a run will do, written before anything is done."""

    schema_version: int = 1
    run_id: str
    created: str
    farm_version: str
    inventory_sha256: str | None
    limits: Limits
    devices: tuple[PlannedDevice, ...]
    configs: tuple[Config, ...]
    cases: tuple[Case, ...]
    cells: tuple[Cell, ...]
    known: tuple[Known, ...] = ()
    band_overrides: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Mapping[str, float]):
    """How long a plan will take, roughly: device id → seconds of work there, canaries included.

    `basis` says in one sentence what the figures rest on.
    """

    device_s: dict[str, float]
    reference_s: float
    """Seconds of reference runs on this host, before the devices start."""
    total_s: float
    """Wall clock: devices run side by side, those of transport `local` share this machine and take turns."""
    basis: str

    def __getitem__(self, device: str) -> float:
        return self.device_s[device]

    def __iter__(self) -> Iterator[str]:
        return iter(self.device_s)

    def __len__(self) -> int:
        return len(self.device_s)


def make_plan(
    devices: Sequence[PlannedDevice],
    cases: Sequence[Case],
    configs: Sequence[Config],
    runtimes: Mapping[str, Sequence[str]],
    limits: Limits,
    *,
    run_id: str,
    created: str,
    farm_version: str,
    known: Sequence[Known] = (),
    band_overrides: Mapping[str, Mapping[str, float]] | None = None,
    inventory_sha256: str | None = None,
) -> Plan:
    """Lay out every cell of a run: device × case × config × runtime.

    `runtimes`: names per device id, at least one each. Order: device by device, in it case by case, in a case the CPU
    configs first (they tell whether the GPU's numbers can be judged), then GPU and NPU, then the diagnostics.
    Raises ValueError if a device has no runtime or two devices, cases or configs share a name.
    """
    for what, names in (
        ("device", [d.id for d in devices]),
        ("case", [c.id for c in cases]),
        ("config", [c.name for c in configs]),
    ):
        twice = [n for n, count in Counter(names).items() if count > 1]
        if twice:
            raise ValueError(f"{what} ids are given twice: {', '.join(twice)}")
    without = [d.id for d in devices if not runtimes.get(d.id)]
    if without:
        raise ValueError(f"no runtime is named for: {', '.join(without)}")
    ordered = sorted(configs, key=_config_rank)  # stable: the user's order within each group
    named = [
        (device.id, case.id, config.name, runtime)
        for device in devices
        for case in cases
        for runtime in dict.fromkeys(runtimes[device.id])
        for config in ordered
    ]
    several = {d.id for d in devices if len(set(runtimes[d.id])) > 1}
    ids = _cell_ids(named, several)
    return Plan(
        run_id=run_id,
        created=created,
        farm_version=farm_version,
        inventory_sha256=inventory_sha256,
        limits=limits,
        devices=tuple(devices),
        configs=tuple(ordered),
        cases=tuple(cases),
        cells=tuple(
            Cell(id=cell_id, device=device, case=case, config=config, runtime=runtime)
            for cell_id, (device, case, config, runtime) in zip(ids, named, strict=True)
        ),
        known=tuple(known),
        band_overrides={name: dict(limit) for name, limit in (band_overrides or {}).items()},
    )


def _config_rank(config: Config) -> int:
    if config.diagnostic:
        return 2
    return 0 if config.accelerator == "cpu" else 1


def cell_id(device: str, case: str, config: str, runtime: str, taken: Container[str] = ()) -> str:
    """Return the id of a cell that joins a run later; `taken` holds the other ids of the run, casefolded."""
    (name,) = _cell_ids([(device, case, config, runtime)], {device})
    return _digested(name, (device, case, config, runtime)) if name.casefold() in taken else name


MAX_CELL_ID = 120
"""Bytes. A file name holds 255, and the id is part of temporary names."""


def _cell_ids(cells: Sequence[tuple[str, str, str, str]], several: Container[str]) -> list[str]:
    """Return a file name per cell: readable, bounded, unique also where upper and lower case are the same."""
    plain = []
    for device, case, config, runtime in cells:
        parts = [device, case, config, *([runtime] if device in several else [])]
        plain.append("--".join(_safe(part) for part in parts))
    count = Counter(name.casefold() for name in plain)
    return [
        name if count[name.casefold()] == 1 and len(name) <= MAX_CELL_ID else _digested(name, cell)
        for name, cell in zip(plain, cells, strict=True)
    ]


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._~-]", "_", text).lstrip(".-") or "_"


def _digested(name: str, cell: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\0".join(cell).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{name[: MAX_CELL_ID - 13]}-{digest}"


# Seconds, for an estimate without history. Measured with ai-edge-litert 2.3.0 on 2 x86-64 cores: an agent process costs
# 4 ms (cpu) to 70 ms (gpu, of which compiling 50) on a small model; models of 3 to 9 MB take 1 to 4 ms per MB and
# inference on XNNPACK and 30 to 60 ms per MB on llvmpipe; reference kernels are 3 to 4 times slower than XNNPACK.
_PROCESS_S = {"cpu": 0.02, "gpu": 0.12, "npu": 0.12}
_INFERENCE_S_PER_MB = {"cpu": 0.003, "gpu": 0.05, "npu": 0.05}
_REFERENCE_KERNELS = 4.0
_CANARIES = 3


def estimate(plan: Plan, history: Mapping[tuple[str, str, str], float] | None = None) -> Estimate:
    """Estimate the wall clock of a plan.

    `history`: seconds a cell took before, by (device id, model sha256, config name). Without it the figures come from
    model size alone, which is good to an order of magnitude; `basis` says so.
    """
    cases = {c.id: c for c in plan.cases}
    configs = {c.name: c for c in plan.configs}
    past = history or {}
    device_s = dict.fromkeys((d.id for d in plan.devices), 0.0)
    known = 0
    for cell in plan.cells:
        case, config = cases[cell.case], configs[cell.config]
        if case.invalid is not None:
            continue
        seconds = past.get((cell.device, case.model_sha256, cell.config))
        known += seconds is not None
        device_s[cell.device] += _cell_s(case, config, plan.limits) if seconds is None else seconds
    for device, config_name, _ in {(c.device, c.config, c.runtime) for c in plan.cells}:
        device_s[device] += _CANARIES * _PROCESS_S[configs[config_name].accelerator]
    cpu, slow = Config(name="cpu", accelerator="cpu"), Config(name="r", accelerator="cpu", kernel_mode="reference")
    valid = [c for c in plan.cases if c.invalid is None]
    reference_s = sum(2 * _cell_s(c, cpu, plan.limits) + _cell_s(c, slow, plan.limits) for c in valid)
    local = [device_s[d.id] for d in plan.devices if d.transport == "local"]
    others = [device_s[d.id] for d in plan.devices if d.transport != "local"]
    runnable = sum(cases[c.case].invalid is None for c in plan.cells)
    if known and known == runnable:
        basis = "earlier runs of every cell"
    else:
        basis = "model sizes and timings on software GPUs; a first estimate, good to an order of magnitude"
        basis = f"earlier runs of {known} of {runnable} cells, for the others {basis}" if known else basis
    return Estimate(
        device_s=device_s,
        reference_s=reference_s,
        total_s=reference_s + max([sum(local), *others], default=0.0),
        basis=basis,
    )


def _cell_s(case: Case, config: Config, limits: Limits) -> float:
    """Seconds of one cell from its model's size: a process, and per input set warm-up, timed runs and repeats."""
    each = _INFERENCE_S_PER_MB[config.accelerator] * max(case.model_size_bytes / 1e6, 0.05)
    if config.kernel_mode != "delegate":
        each *= _REFERENCE_KERNELS
    sets = max(len(case.input_sets), 1)
    if case.graph is not None and case.graph.stateful:
        return sets * (_PROCESS_S[config.accelerator] + limits.steps * each)
    timed = min(limits.iterations * each, max(limits.iterations_ms / 1e3, each))
    return _PROCESS_S[config.accelerator] + sets * (timed + (limits.warmup + limits.repeats) * each)


def with_bands(plan: Plan, bands: Mapping[str, Mapping[str, float]]) -> Plan:
    """The plan judged with other limits: kind or output name → limit name → value. They win over the specs' own."""

    def over(own: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        return {key: {**own.get(key, {}), **bands.get(key, {})} for key in (*own, *(k for k in bands if k not in own))}

    cases = tuple(
        dataclasses.replace(case, spec=dataclasses.replace(case.spec, bands=over(case.spec.bands)))
        for case in plan.cases
    )
    return dataclasses.replace(plan, cases=cases, band_overrides=over(plan.band_overrides))
