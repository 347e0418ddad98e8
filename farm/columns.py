"""Tensors that came from elsewhere (an app, another runtime) as the column of a device in a run.

The plan gets the device and one cell, the journal its outcome; `farm judge` and `farm report` then treat it as any
other: judged against the run's own CPU reference, `process: app`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Literal

from farm.agent_protocol import PROTOCOL, AgentResult, OutputData, RunData, TensorInfo
from farm.arrays import listed
from farm.cases import Case
from farm.configs import CONFIGS, Config
from farm.delegation import Delegation, Level
from farm.errors import InvalidInput, Problem
from farm.outcome import Outcome, PrecisionClass
from farm.plan import APP, Cell, PlannedDevice, cell_id
from farm.store import RunStore
from farm.tensors import Manifest, Tensor, Tensors, stored

LEVELS: tuple[Level, ...] = ("full", "partial", "none", "unknown")


def add_column(
    store: RunStore,
    tensors: Tensors,
    *,
    device: str,
    model: str,
    config: str,
    signature: str | None = None,
    precision: Literal["fp32", "fp16"] | None = None,
) -> str:
    """Add the tensors to a run as one cell of `device` and return its id; a cell of that name is given anew.

    model: the case's id, model name or file name. config: a config of the run or of farm. precision: the class whose
    bands apply; None = unknown, since no canaries ran there. Raises InvalidInput where they do not fit the case: inputs
    of other bytes, sets or outputs that are missing.
    """
    plan = store.plan
    case = _case(plan.cases, model, signature)
    planned = next((c for c in plan.configs if c.name == config), CONFIGS.get(config))
    if planned is None:
        known = dict.fromkeys([*(c.name for c in plan.configs), *CONFIGS])
        raise InvalidInput(Problem(message=f"unknown config {config!r}", cure="known: " + ", ".join(known)))
    if any(d.id == device and d.transport != APP for d in plan.devices):
        raise InvalidInput(
            Problem(
                message=f"{device!r} is a device of this run", cure="choose another --as-device for the app's column"
            )
        )
    _check_inputs(tensors, case)
    manifest = tensors.manifest or Manifest(tensors=())
    runtime = manifest.runtime or "app"
    parts = (device, case.id, planned.name, runtime)
    others = {c.id.casefold() for c in plan.cells if (c.device, c.case, c.config, c.runtime) != parts}
    cell = Cell(id=cell_id(*parts, taken=others), device=device, case=case.id, config=planned.name, runtime=runtime)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    outcome = Outcome(
        cell=cell.id,
        attempts=1,
        started=now,
        finished=now,
        wall_s=0.0,
        result=_result(store, tensors, case),
        failure=None,
        delegation=_delegation(manifest, planned),
        log_tail=f"tensors of {manifest.source or tensors.path.name}, added with --as-device",
    )
    with store:
        # The outcome first: a plan with a cell that nothing can run would keep the run from ever being finished.
        store.append(outcome)
        store.extend(
            device=PlannedDevice(id=device, transport=APP),
            config=planned,
            cell=cell,
        )
        facts = {"gpu": manifest.accelerator, "model": manifest.device}
        store.write_facts(device, {name: text for name, text in facts.items() if text})
        classes = [
            p for p in store.precision() if p.device == device and (p.runtime, p.config) != (runtime, planned.name)
        ]
        if precision is not None:
            classes.append(
                PrecisionClass(
                    device=device, runtime=runtime, config=planned.name, value=precision,
                    evidence="said by the user, not measured: no canaries ran in the app",
                )
            )  # fmt: skip
        store.write_precision(device, classes)
    return cell.id


def _case(cases: Sequence[Case], model: str, signature: str | None) -> Case:
    named = [c for c in cases if model in (c.id, c.model, c.model_path, c.model_path.rpartition("/")[2])]
    if signature is not None:
        named = [c for c in named if c.signature_key == signature]
    if len(named) == 1:
        if named[0].invalid is not None:
            raise InvalidInput(Problem(message=f"{model!r} was not run: {named[0].invalid}"))
        return named[0]
    if not named:
        said = f"no model {model!r}" + (f" with signature {signature!r}" if signature is not None else "")
        raise InvalidInput(Problem(message=f"{said} in this run", cure=f"models: {listed(c.id for c in cases)}"))
    raise InvalidInput(
        Problem(
            message=f"{model!r} has several signatures",
            cure=f"give --signature: {listed(c.signature_key for c in named)}",
        )
    )


def _check_inputs(tensors: Tensors, case: Case) -> None:
    """Tensors made from other inputs would fail for no fault of the device: refuse them where that can be seen."""
    manifest = tensors.manifest
    if manifest is not None and manifest.model_sha256 and manifest.model_sha256 != case.model_sha256:
        raise InvalidInput(
            Problem(
                message=f"were made with another model file (sha256 {manifest.model_sha256[:16]}…) than {case.id!r}",
                file=str(tensors.path),
                cure=f"the run's has {case.model_sha256[:16]}…; sweep the same file the app ships",
            )
        )
    problems = []
    for t in tensors.of("input"):
        fed = next((s for s in case.input_sets if s.name == t.set), None)
        array = next((x for x in fed.arrays if x.name == t.name), None) if fed else None
        if array is None:
            continue
        if hashlib.sha256(stored(t.array.read())[1].tobytes()).hexdigest() != array.sha256:
            problems.append(
                Problem(
                    message=f"input {t.name!r} of set {t.set!r} is not what the run was fed",
                    file=str(tensors.path),
                    cure="sweep with the app test's golden inputs: --inputs golden.npz",
                )
            )
    if problems:
        raise InvalidInput(problems)


def _result(store: RunStore, tensors: Tensors, case: Case) -> AgentResult:
    """The tensors as an agent's result. Raises InvalidInput naming every set and output that is missing."""
    names = _output_names(store, case)
    sets = [s.name for s in case.input_sets]
    infos: dict[int, TensorInfo] = {}
    runs: dict[tuple[int, int], dict[int, OutputData]] = {}
    unknown = []
    for t in tensors.of("output"):
        place = _place(t, names, sets)
        if place is None:
            unknown.append(f"{t.set}/{t.name}" if t.set else t.name)
            continue
        number, index = place
        data = stored(t.array.read())[1]
        sha256 = store.objects.put_bytes(data.tobytes())
        infos.setdefault(
            index,
            TensorInfo(
                index=index, name=names[index], dtype=t.array.dtype, shape=t.array.shape, size_bytes=data.nbytes
            ),
        )
        runs.setdefault((number, t.step), {})[index] = OutputData(
            index=index, sha256=sha256, size_bytes=data.nbytes, file="", shape=t.array.shape, repeat_sha256=(sha256,)
        )
    wanted = [(s, n) for s in range(len(sets)) for n in range(len(names))]
    missing = [f"{sets[s]}/{names[n]}" for s, n in wanted if n not in runs.get((s, 0), {})]
    if missing:
        cure = f"the run has sets {listed(sets)} and outputs {listed(names)}"
        if unknown:
            cure += f"; not understood: {listed(unknown)}"
        raise InvalidInput(Problem(message=f"lack {listed(missing)}", file=str(tensors.path), cure=cure))
    latency = tensors.manifest.latency_ms if tensors.manifest else {}
    return AgentResult(
        protocol=PROTOCOL,
        agent_version="",
        nonce="",
        ok=True,
        stage="done",
        outputs=tuple(infos[i] for i in sorted(infos)),
        runs=tuple(
            RunData(
                set=s,
                step=step,
                outputs=tuple(found[i] for i in sorted(found)),
                latency_ms=latency.get(sets[s], ()) if step == 0 else (),
            )
            for (s, step), found in sorted(runs.items())
        ),
    )


def _output_names(store: RunStore, case: Case) -> list[str]:
    """The signature's outputs as the run's reference names them, else the graph."""
    reference = store.references().get(case.id)
    if reference is not None and reference.first is not None and reference.first.outputs:
        return [o.name for o in sorted(reference.first.outputs, key=lambda o: o.index)]
    if case.graph is not None:
        return [o.name for o in case.graph.outputs]
    raise InvalidInput(
        Problem(message=f"the run has no reference for {case.id!r} to judge against", cure="sweep it again")
    )


def _place(t: Tensor, names: Sequence[str], sets: Sequence[str]) -> tuple[int, int] | None:
    """(input set, output) a tensor stands for: by name or outN; npz keys may be SET/NAME; a lone set needs no name."""
    spellings = {f"out{i}": i for i in range(len(names))} | {n: i for i, n in enumerate(names)}
    wanted = {"": 0} if len(sets) == 1 else {}
    wanted |= {name: i for i, name in enumerate(sets)}
    if t.name in spellings and t.set in wanted:
        return wanted[t.set], spellings[t.name]
    for name, number in wanted.items():
        if name and t.name.startswith(f"{name}/") and t.name.removeprefix(f"{name}/") in spellings:
            return number, spellings[t.name.removeprefix(f"{name}/")]
    return None


def _delegation(manifest: Manifest, config: Config) -> Delegation:
    level = next((known for known in LEVELS if known == manifest.delegation), None)
    if level is None:
        raise InvalidInput(
            Problem(message=f"unknown delegation {manifest.delegation!r} in tensors.json", cure=", ".join(LEVELS))
        )
    if config.accelerator == "cpu":
        return Delegation(level="unknown")
    return Delegation(level=level, gpu_api=None, adapter=manifest.accelerator or None)
