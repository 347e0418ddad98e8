"""One more CPU run of a case in which the model shows tensors from its inside, and what is made of them.

Beside the reference: reference.py lends the session. `recomputed` checks large reductions (reductions.py says what they
ought to be), `activations` measures every tensor for hazards.py. The exposed tensors live in a store of their own that
is gone afterwards; only recomputed results stay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from farm.agent_protocol import AgentResult, OutputData, RunData
from farm.cases import Case
from farm.hazards import Stats, merged, stats_of
from farm.objects import Objects
from farm.outcome import IndexScores, Recomputed
from farm.reductions import (
    MAX_BYTES,
    NotRecomputed,
    Reduction,
    agreement_db,
    find_reductions,
    recompute,
    refusal,
    stored,
)
from farm.rewrite import NotRewritable, Rewrite
from farm.session import Observation, Task
from farm.tflite import Model, Subgraph, read_model

MAX_SPLITS = 16
"""Further runs when a group of tensors cannot be shown: enough to find one bad tensor among thousands."""
SCORES = ("float32", "float16", "int8", "uint8", "int16", "int32")
MAX_SCORES_BYTES = 1 << 26
"""Largest tensor kept to tell near ties among its indices."""
FLOATS = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Where exposed runs happen. objects: a store to throw away, which holds the case's inputs; kept: the run's."""

    observe: Callable[[Task], Observation]
    objects: Objects
    kept: Objects
    folder: Path
    """For rewritten models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """What an exposed run gave. index: tensor → output number."""

    result: AgentResult
    index: dict[int, int]

    def output(self, run: RunData, tensor: int) -> OutputData | None:
        return next((o for o in run.outputs if o.index == self.index.get(tensor, -1)), None)


def run_exposed(case: Case, task: Task, model: Model, tensors: Sequence[int], lab: Lab) -> Exposed | str:
    """Run a case once more with `tensors` shown as outputs; a sentence where that does not work."""
    try:
        rewrite = Rewrite(model)
        names = rewrite.expose(case.signature, tensors)
        data = rewrite.pack()
    except (NotRewritable, MemoryError) as e:
        return f"its input cannot be shown: {e or 'out of memory'}"
    sha256 = hashlib.sha256(data).hexdigest()
    path = lab.folder / f"{sha256[:16]}.tflite"
    try:
        path.write_bytes(data)
        seen = lab.observe(replace(task, model=path, model_sha256=sha256, repeats=1, iterations=1))
    except OSError as e:
        return f"its input cannot be shown: {e.strerror or e}"
    finally:
        path.unlink(missing_ok=True)
    if seen.failure is not None or seen.result is None:
        said = seen.failure.message if seen.failure is not None else "no result"
        return f"the run that shows its input failed: {said}"
    number = {info.name: info.index for info in seen.result.outputs}
    return Exposed(result=seen.result, index={t: number[name] for t, name in names.items() if name in number})


def recomputed(case: Case, task: Task, first: AgentResult, lab: Lab) -> tuple[Recomputed, ...]:
    """Every large reduction of a case, recomputed or with the reason why it is not."""
    if case.graph is None:
        return ()
    model = read_model(task.model)
    found = find_reductions(model, case.signature, case.graph.inputs)
    done: dict[int, Recomputed] = {}
    wanted = []
    for reduction in found:
        if why := refusal(reduction):
            done[reduction.op.index] = _told(reduction, note=why)
        else:
            wanted.append(reduction)
    for group in _groups(wanted, max(len(task.inputs), 1) * max(task.steps, 1)):
        done |= _group(case, task, model, first, group, lab)
    return tuple(done[r.op.index] for r in found)


def _told(reduction: Reduction, **more: object) -> Recomputed:
    return Recomputed(
        op=reduction.op.name,
        op_index=reduction.op.index,
        elements=reduction.elements,
        outputs=reduction.outputs,
        last=reduction.last,
        **more,  # type: ignore[arg-type]
    )


def _groups(wanted: Sequence[Reduction], times: int) -> Iterator[list[Reduction]]:
    """Reductions whose inputs fit together."""
    group: list[Reduction] = []
    held = 0
    for reduction in wanted:
        size = reduction.size_bytes * times
        if group and held + size > MAX_BYTES:
            yield group
            group, held = [], 0
        group.append(reduction)
        held += size
    if group:
        yield group


def _group(
    case: Case, task: Task, model: Model, first: AgentResult, group: Sequence[Reduction], lab: Lab
) -> dict[int, Recomputed]:
    if sum(r.size_bytes for r in group) * max(len(task.inputs), 1) * max(task.steps, 1) > MAX_BYTES:
        why = "its inputs of all input sets do not fit into 1 GiB"
        return {r.op.index: _told(r, note=why) for r in group}
    shown = run_exposed(case, task, model, [t for r in group for t in (r.source, r.result)], lab)
    if isinstance(shown, Exposed) and not same_outputs(first, shown.result):
        shown = "showing its input changed what the CPU computes"
    if isinstance(shown, str):
        return {r.op.index: _told(r, note=shown) for r in group}
    return {r.op.index: _one(case, model, first, r, shown, lab) for r in group}


def _one(case: Case, model: Model, first: AgentResult, reduction: Reduction, shown: Exposed, lab: Lab) -> Recomputed:
    number = model.signatures[case.signature].subgraph
    tensors = model.subgraphs[number].tensors
    source_type, result_type = tensors[reduction.source], tensors[reduction.result]
    quantization = result_type.quantization
    plain = {(run.set, run.step): run for run in first.runs}
    worst: float | None = None
    exact: list[RunData] = []
    try:
        for run in shown.result.runs:
            source, result = shown.output(run, reduction.source), shown.output(run, reduction.result)
            if source is None or result is None or source_type.dtype not in ("float32", "int8", "uint8", "int16"):
                raise NotRecomputed(f"its input, {source_type.dtype}, cannot be shown")
            given = lab.objects.load(source.sha256, source_type.dtype, source.shape)
            got = lab.objects.load(result.sha256, result_type.dtype, result.shape)
            right = recompute(model, number, reduction.op, given, result.shape)
            near = agreement_db(got, right, quantization)
            worst = near if worst is None else min(worst, near)
            kept = stored(right, got.dtype, quantization)
            sha256 = lab.kept.put_bytes(kept.tobytes())
            before = plain[run.set, run.step].outputs
            outputs = tuple(
                dataclasses.replace(
                    o, sha256=sha256, size_bytes=kept.nbytes, file="", repeat_sha256=(), repeat_files={}
                )
                for o in before
                if o.index in reduction.last and o.size_bytes == kept.nbytes
            )
            exact.append(RunData(set=run.set, step=run.step, outputs=outputs))
    except (NotRecomputed, KeyError, MemoryError) as e:
        return _told(reduction, note=str(e) or "out of memory")
    return _told(reduction, snr_db=worst, exact=tuple(exact))


def index_scores(case: Case, task: Task, first: AgentResult, lab: Lab) -> tuple[IndexScores, ...]:
    """What the index outputs of a case were chosen from; left out where it is large, or cannot be shown as it is."""
    if case.graph is None:
        return ()
    model = read_model(task.model)
    graph = model.subgraphs[model.signatures[case.signature].subgraph]
    wanted: dict[int, tuple[int, int]] = {}
    for position, output in enumerate(case.graph.outputs):
        source = output.index_source
        axis = None if source is None else _index_axis(model, graph, source)
        if source is None or axis is None or graph.tensors[source].dtype not in SCORES:
            continue
        if 4 * int(np.prod(graph.tensors[source].shape, dtype=np.int64)) <= MAX_SCORES_BYTES:
            wanted[position] = source, axis
    if not wanted:
        return ()
    shown = run_exposed(case, task, model, list(dict.fromkeys(source for source, _ in wanted.values())), lab)
    if isinstance(shown, str) or not same_outputs(first, shown.result):
        return ()
    out = []
    for position, (source, axis) in wanted.items():
        dtype, runs = graph.tensors[source].dtype, []
        for run in shown.result.runs:
            o = shown.output(run, source)
            if o is None or o.size_bytes > MAX_SCORES_BYTES:
                break
            lab.kept.put_bytes(lab.objects.load(o.sha256, dtype, o.shape).tobytes())
            runs.append(replace(run, outputs=(replace(o, repeat_sha256=(), repeat_files={}),)))
        if len(runs) == len(shown.result.runs):
            out.append(IndexScores(position=position, dtype=dtype, axis=axis, runs=tuple(runs)))
    return tuple(out)


def _index_axis(model: Model, graph: Subgraph, source: int) -> int | None:
    """The axis of the one op that chooses indices from a tensor; None where it is computed, or there are several."""
    found = set()
    for op in graph.ops:
        if op.inputs[:1] != (source,) or op.name not in ("ARG_MAX", "ARG_MIN", "TOPK_V2"):
            continue
        rank = len(graph.tensors[source].shape)
        given = model.constant(graph.tensors[op.inputs[1]]) if op.name != "TOPK_V2" else np.array(-1)
        found.add(None if given is None or given.size != 1 or not rank else int(given.reshape(-1)[0]) % rank)
    return found.pop() if len(found) == 1 else None


def with_floor(
    case: Case, task: Task, found: tuple[Recomputed, ...], floor: AgentResult, lab: Lab
) -> tuple[Recomputed, ...]:
    """The same with how near the noise floor's kernels come, which `task` names: those may be the wrong ones."""
    again = {e.op_index: e.snr_db for e in recomputed(case, task, floor, lab)}
    return tuple(replace(e, floor_snr_db=again.get(e.op_index)) for e in found)


def same_outputs(first: AgentResult, shown: AgentResult) -> bool:
    """Whether an exposed run gave the model's own outputs bit for bit."""
    other = {(run.set, run.step, o.index): o.sha256 for run in shown.runs for o in run.outputs}
    return all(other.get((run.set, run.step, o.index)) == o.sha256 for run in first.runs for o in run.outputs)


def activations(case: Case, task: Task, lab: Lab) -> dict[int, Stats]:
    """Figures of every float tensor that an op of the signature's own subgraph writes, over all input sets.

    Tensors are shown in groups that fit into 1 GiB; what cannot be shown, or not before the task's deadline (one for
    all groups, beside each run's own), is left out.
    """
    model = read_model(task.model)
    graph = model.subgraphs[model.signatures[case.signature].subgraph]
    written = [t for op in graph.ops for t in op.outputs if graph.tensors[t].dtype in FLOATS]
    out: dict[int, Stats] = {}
    waiting, held = [list[int]()], 0
    for t in [*graph.inputs, *dict.fromkeys(written)]:
        if graph.tensors[t].dtype not in FLOATS:
            continue
        size = 4 * int(np.prod(graph.tensors[t].shape, dtype=np.int64)) * max(len(task.inputs), 1)
        if size > MAX_BYTES:
            continue
        if held + size > MAX_BYTES:
            waiting.append([])
            held = 0
        waiting[-1].append(t)
        held += size
    tries = len(waiting) + MAX_SPLITS
    end = time.monotonic() + task.deadline_s
    while waiting and tries and time.monotonic() < end:
        tries -= 1
        group = waiting.pop()
        shown = run_exposed(case, task, model, group, lab) if group else "nothing to show"
        if isinstance(shown, str):
            # One tensor the runtime will not show must not hide the others.
            if len(group) > 1:
                waiting += [group[: len(group) // 2], group[len(group) // 2 :]]
            continue
        for run in shown.result.runs:
            for t in group:
                if (o := shown.output(run, t)) is not None:
                    values = lab.objects.load(o.sha256, graph.tensors[t].dtype, o.shape)
                    out[t] = merged(out.get(t), stats_of(values))
    return out
