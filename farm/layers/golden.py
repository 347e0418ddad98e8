"""When this host's CPU is not the better side: hybrid kernels, and float32 sums over very many elements.

A hybrid model's layers are compared with a float copy of it; a large reduction with its float64 recomputation. What
lies behind a reduction that the CPU itself gets wrong has no reference and is not judged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from farm.cases import Case
from farm.errors import FarmError
from farm.float_copy import float_copy
from farm.graph import Walk
from farm.layers.bench import Bench, Stored
from farm.layers.health import assess
from farm.layers.outputs import judged
from farm.layers.sweep import CannotStudy, Sweep
from farm.layers.view import View, watch
from farm.reductions import NotRecomputed, agreement_db, find_reductions, recompute, refusal, stored
from farm.rewrite import NotRewritable
from farm.tflite import Model, read_model

HOLDS_DB = 100.0
"""A CPU sum this near to the exact one needs no replacing: healthy FP32 layers agree at 100 dB and more."""


def reference_view(case: Case, model: Model, view: View, folder: Path) -> View:
    """The view of what this CPU runs: the model itself, or its float copy where kernels quantise on the fly.

    Raises CannotStudy where a hybrid model has no float copy: the CPU's own rounding would be taken for the device's.
    """
    if case.graph is None or not case.graph.hybrid_ops:
        return view
    path = folder / "float-copy.tflite"
    try:
        path.write_bytes(float_copy(model))
    except NotRewritable as e:
        raise CannotStudy(
            f"the CPU quantises activations on the fly ({', '.join(case.graph.hybrid_ops)}) and no float copy to "
            f"compare with can be made: {e}"
        ) from e
    return watch(read_model(path), case.signature)


def mend_reductions(case: Case, view: View, sweep: Sweep, host: Bench, *, low_precision: bool) -> None:
    """Put exact results where the CPU's float32 sums are off; take back the figures of what was computed from those."""
    assert case.graph is not None
    for reduction in find_reductions(view.model, view.signature, case.graph.inputs):
        t = reduction.result
        if t not in sweep.golden:
            continue
        why = refusal(reduction)
        quantization = view.graph.tensors[t].quantization
        if not why:
            try:
                source = _source(case, view, sweep, host, reduction.source)
                golden = host.load(sweep.golden[t])
                exact = recompute(view.model, view.graph.index, reduction.op, source, golden.shape)
            except (NotRecomputed, KeyError, FarmError) as e:
                why = str(e)
        if why:
            _take_back(view, sweep, [t], f"{reduction.op.name} over {reduction.elements} elements: {why}")
            continue
        if agreement_db(golden, exact, quantization) >= HOLDS_DB:
            continue
        right = stored(exact, golden.dtype, quantization)
        sha256 = host.objects.put_bytes(right.tobytes())
        sweep.golden[t] = Stored(sha256=sha256, dtype=sweep.golden[t].dtype, shape=golden.shape)
        theirs = host.load(sweep.seen[t])
        health = assess(right, theirs, low_precision=low_precision, quantization=quantization)
        own = view.layers[t].own_output
        sweep.health[t] = health if own is None else judged(case, own, right, theirs, health, low=low_precision)
        message = f"computed from the CPU's own wrong {reduction.op.name} (op {reduction.op.index})"
        _take_back(view, sweep, list(view.layers[t].consumers), message)


def _source(case: Case, view: View, sweep: Sweep, host: Bench, tensor: int) -> np.ndarray:
    """A reduction's input: a watched tensor, a model input, or either through pure reshapes."""
    walk: Walk = view.walk
    shape = view.graph.tensors[tensor].shape
    while tensor not in sweep.golden and tensor in walk.producer:
        tensor = walk.producer[tensor].inputs[0]
    if tensor in sweep.golden:
        return host.load(sweep.golden[tensor]).reshape(shape)
    position = [t for _, t in view.model.signatures[view.signature].inputs].index(tensor)
    array = case.input_sets[sweep.input_set].arrays[position]
    return host.objects.load(array.sha256, array.dtype, array.shape).reshape(shape)


def _take_back(view: View, sweep: Sweep, tensors: list[int], why: str) -> None:
    """Forget the figures of tensors and of everything computed from them."""
    waiting, seen = list(tensors), set(tensors)
    while waiting:
        t = waiting.pop()
        if sweep.health.pop(t, None) is not None:
            sweep.golden.pop(t, None)
            sweep.seen.pop(t, None)
            sweep.unseen[t] = why
        for c in view.layers[t].consumers:
            if c not in seen:
                seen.add(c)
                waiting.append(c)
