"""What each model input means, read from the graph and from its name: ids, a mask, positions, an image, sound, values.

Inputs that mean nothing make healthy models look broken (ids outside the vocabulary, a mask of noise), so this is
where natural inputs begin. Used by inputs.py.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Literal

from farm.graph import InputFacts, Walk
from farm.tflite import Model, Op, Signature

Role = Literal["ids", "mask", "additive-mask", "types", "positions", "image", "sound", "values"]

_MOVING = frozenset(
    ("CAST", "RESHAPE", "EXPAND_DIMS", "SQUEEZE", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "CONCATENATION", "PACK",
     "UNPACK", "SPLIT", "SPLIT_V", "TILE", "BROADCAST_TO", "REVERSE_V2", "GATHER")
)  # fmt: skip
_PASSING = _MOVING | {"MAXIMUM", "MINIMUM", "SELECT", "SELECT_V2", "ADD", "SUB", "FLOOR", "ROUND"}
"""Ops through which an index stays an index."""
_CALLS = {"IF": 1, "WHILE": 0, "CALL": 0, "STABLEHLO_COMPOSITE": 0}
"""Ops that hand their inputs to a subgraph, and the first input they hand on."""
SOUND_FROM = 4000
"""A float row this long is a waveform rather than features: a quarter of a second at 16 kHz."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """bound: ids must be below it (rows of the smallest table they index), or None."""

    role: Role
    bound: int | None = None


def meaning(model: Model, signature: Signature, facts: InputFacts) -> Meaning:
    """What one signature input means. `facts` carries the shape it will be fed with."""
    words = set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", facts.name).lower()))
    tensor_name = model.subgraphs[signature.subgraph].tensors[facts.tensor].name
    words |= set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tensor_name).lower()))
    bound = index_bound(model, signature.subgraph, facts.tensor) if facts.quantization is None else None
    whole = facts.dtype in ("int32", "int64", "int16", "uint32", "uint16", "uint64", "int8", "uint8", "bool")
    plain = facts.quantization is None
    if words & {"mask", "masks", "padding"} and plain:
        if not whole and _is_added(model, signature, facts.tensor):
            return Meaning(role="additive-mask")
        return Meaning(role="mask", bound=bound)
    if whole and plain and words & {"type", "types", "segment", "segments"} and facts.dtype != "bool":
        return Meaning(role="types", bound=bound)
    if whole and plain and words & {"position", "positions", "pos"} and facts.dtype != "bool":
        return Meaning(role="positions", bound=bound)
    if bound is not None:
        return Meaning(role="ids", bound=bound)
    if whole and plain and facts.dtype in ("int32", "int64") and words & {"ids", "tokens", "token"}:
        # Named like ids, but the table is out of sight (in a custom op, say): any vocabulary has this many.
        return Meaning(role="ids", bound=100)
    shape = facts.shape
    if len(shape) == 4 and (
        (shape[3] in (1, 3, 4) and min(shape[1:3]) >= 8) or (shape[1] in (1, 3, 4) and min(shape[2:]) >= 8)
    ):
        return Meaning(role="image")
    long = max(shape, default=0) >= SOUND_FROM and sum(d > 1 for d in shape) <= (2 if shape[:1] != (1,) else 1)
    if len(shape) <= 3 and long and facts.dtype in ("float32", "float16", "float64", "bfloat16", "int16"):
        return Meaning(role="sound")
    return Meaning(role="values")


def index_bound(model: Model, subgraph: int, tensor: int) -> int | None:
    """Rows of the smallest table that values of a tensor index, followed through casts and reshapes, or None."""
    bound: int | None = None
    walks: dict[int, Walk] = {}
    start = (subgraph, tensor, 0)
    seen, waiting = {start[:2]}, deque([start])
    while waiting:
        at, t, shift = waiting.popleft()
        walk = walks.get(at) or walks.setdefault(at, Walk(model.subgraphs[at]))
        for op in walk.consumers.get(t, ()):
            rows = _rows(walk, op, t)
            if rows is not None:
                bound = max(min(rows - shift, rows if bound is None else bound), 1)
            elif op.name in _PASSING and not (op.name == "GATHER" and op.inputs[1] == t):
                more = shift + _offset(model, walk, op, t)
                for out in op.outputs:
                    # Arithmetic keeps indices only among whole numbers; else all of a residual net would be walked.
                    kept = op.name in _MOVING or "int" in walk.tensor(out).dtype
                    if kept and (at, out) not in seen:
                        seen.add((at, out))
                        waiting.append((at, out, more))
            elif op.name in _CALLS:
                _enter(model, op, t, shift, seen, waiting)
    return bound


def _rows(walk: Walk, op: Op, t: int) -> int | None:
    """Rows of the table `op` looks up by `t`; None if it does not."""
    if len(op.inputs) < 2 or min(op.inputs[:2]) < 0:
        return None
    shape = walk.tensor(op.inputs[1] if op.name == "EMBEDDING_LOOKUP" else op.inputs[0]).shape
    if op.name == "EMBEDDING_LOOKUP" and op.inputs[0] == t and shape:
        return max(shape[0], 1)
    if op.name == "GATHER" and op.inputs[1] == t and shape:
        axis = int(op.options.get("axis", 0))
        return max(shape[axis], 1) if -len(shape) <= axis < len(shape) else None
    if op.name == "GATHER_ND" and op.inputs[1] == t and shape:
        columns = walk.tensor(t).shape[-1:] or (1,)
        return max(min(shape[: max(columns[0], 1)], default=1), 1)
    if op.name == "DYNAMIC_UPDATE_SLICE" and len(op.inputs) > 2 and op.inputs[2] == t:
        return min((max(a - b, 0) + 1 for a, b in zip(shape, walk.tensor(op.inputs[1]).shape, strict=False)), default=1)
    return None


def _offset(model: Model, walk: Walk, op: Op, t: int) -> int:
    """What a constant added to ids shifts them by (learned positions that start at 2).

    Wrapping negative ids adds the whole table, to be selected by sign: an ADD whose result a SELECT takes counts not.
    """
    if op.name != "ADD" or any(c.name in ("SELECT", "SELECT_V2") for c in walk.consumers.get(op.outputs[0], ())):
        return 0
    for other in op.inputs:
        if other not in (t, -1) and walk.is_constant(other):
            value = model.constant(walk.tensor(other))
            if value is not None and value.size == 1 and 0 < float(value.reshape(-1)[0]) < 1 << 20:
                return int(value.reshape(-1)[0])
    return 0


def _enter(
    model: Model, op: Op, t: int, shift: int, seen: set[tuple[int, int]], waiting: deque[tuple[int, int, int]]
) -> None:
    for key, index in op.options.items():
        if not (key.endswith("subgraph_index") or key == "subgraph"):
            continue
        inner = model.subgraphs[index].inputs
        for position, outer in enumerate(op.inputs[_CALLS[op.name] :]):
            if outer == t and position < len(inner) and (index, inner[position]) not in seen:
                seen.add((index, inner[position]))
                waiting.append((index, inner[position], shift))


def _is_added(model: Model, signature: Signature, tensor: int) -> bool:
    """Whether a float mask is added as it is (0 = keep, a large negative number = hide) rather than multiplied."""
    walk = Walk(model.subgraphs[signature.subgraph])
    seen, waiting = {tensor}, deque([tensor])
    added = False
    while waiting:
        for op in walk.consumers.get(waiting.popleft(), ()):
            if op.name in ("MUL", "SUB", "RSUB", "SELECT", "SELECT_V2", "EQUAL", "NOT_EQUAL", "GREATER", "LESS"):
                return False
            added = added or op.name == "ADD"
            if op.name in (
                "CAST",
                "RESHAPE",
                "EXPAND_DIMS",
                "SQUEEZE",
                "TRANSPOSE",
                "SLICE",
                "STRIDED_SLICE",
                "TILE",
                "BROADCAST_TO",
            ):
                new = [o for o in op.outputs if o not in seen]
                seen.update(new)
                waiting.extend(new)
    return added
