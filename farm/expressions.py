"""Small expressions over metrics, as users write them in `assertions:`; read with `ast`, never evaluated by Python.

    cosine > 0.99 and max_abs < 0.05        0 < norm_ratio <= 1.1        not (snr_db < 40 or target_nan > 0)

Allowed: numbers, names of metrics, + - * /, comparisons (chained too), and, or, not, abs(), min(), max(). Everything
else is refused when the spec is read. What has no value (a metric that is not defined, a division by zero) makes the
whole comparison undefined: neither true nor false.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
from collections.abc import Callable, Mapping

METRICS = (
    "centred_cosine", "cosine", "elements", "equal_share", "flips", "floor_snr_db", "kl", "last_cosine", "max_abs",
    "max_row_norm_off", "max_steps", "mean_abs", "mean_steps", "min_row_cosine", "near_ties", "norm_ratio", "nrmse",
    "p99_abs", "probability_max_abs", "ref_inf", "ref_max", "ref_min", "ref_nan", "ref_norm", "relative_l2",
    "saturated", "share_above_1", "small_snr_db", "snr_db", "target_inf", "target_nan", "target_norm", "tie_share",
    "top1", "zero_share",
)  # fmt: skip
"""What the judge stores for an output, and what its kind adds."""
OF_THE_CELL = ("compile_ms", "latency_ms", "peak_rss_bytes")
"""The same for all outputs of a cell: median latency of the first input set, time to compile, peak memory."""
NAMES = (*METRICS, *OF_THE_CELL)
LONGEST = 500
DEEPEST = 40

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_CALLS: dict[str, Callable[..., float]] = {"abs": abs, "min": min, "max": max}


class Refused(ValueError):
    """The text is no expression of ours; says why and where."""


class Undefined(ValueError):
    """The expression has no value here: a metric is not defined for this output, or a division by zero."""


def parse(text: str) -> ast.expr:
    """Return the expression, checked. Raises Refused with one sentence."""
    if len(text) > LONGEST:
        raise Refused(f"is longer than {LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise Refused(f"cannot be read: {e.args[0] if e.args else e}") from e
    _truth(tree, 0)
    if not names_in(tree):
        raise Refused("names no metric, so it would say the same of every model")
    return tree


def names_in(tree: ast.expr) -> tuple[str, ...]:
    """Return the metrics an expression names, in order, each once."""
    found = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id not in _CALLS]
    return tuple(dict.fromkeys(found))


def holds(tree: ast.expr, values: Mapping[str, float]) -> bool:
    """Tell whether a checked expression is true of these values. Raises Undefined where it has no value."""
    if isinstance(tree, ast.BoolOp):
        # No short cut past an undefined part: `a or b` with an undefined `a` is not known to be what was meant.
        parts = [holds(part, values) for part in tree.values]
        return all(parts) if isinstance(tree.op, ast.And) else any(parts)
    if isinstance(tree, ast.UnaryOp):
        return not holds(tree.operand, values)
    assert isinstance(tree, ast.Compare)
    terms = [_value(term, values) for term in (tree.left, *tree.comparators)]
    return all(_COMPARE[type(op)](a, b) for op, a, b in zip(tree.ops, terms, terms[1:], strict=False))


def _value(tree: ast.expr, values: Mapping[str, float]) -> float:
    result: float
    if isinstance(tree, ast.Constant):
        result = float(tree.value)  # type: ignore[arg-type]  # parse() let numbers through only
    elif isinstance(tree, ast.Name):
        if tree.id not in values:
            raise Undefined(f"{tree.id} is not defined here")
        result = float(values[tree.id])
    elif isinstance(tree, ast.UnaryOp):
        result = -_value(tree.operand, values) if isinstance(tree.op, ast.USub) else _value(tree.operand, values)
    elif isinstance(tree, ast.BinOp):
        left, right = _value(tree.left, values), _value(tree.right, values)
        try:
            result = _BINARY[type(tree.op)](left, right)
        except ZeroDivisionError as e:
            raise Undefined(f"{ast.unparse(tree)} divides by zero") from e
    else:
        assert isinstance(tree, ast.Call)
        assert isinstance(tree.func, ast.Name)
        result = _CALLS[tree.func.id](*(_value(argument, values) for argument in tree.args))
    if not math.isfinite(result):
        raise Undefined(f"{ast.unparse(tree)} is {result}")
    return result


def _truth(tree: ast.expr, depth: int) -> None:
    """Check what must be true or false."""
    if depth > DEEPEST:
        raise Refused("is nested too deeply")
    if isinstance(tree, ast.BoolOp):
        for part in tree.values:
            _truth(part, depth + 1)
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        _truth(tree.operand, depth + 1)
    elif isinstance(tree, ast.Compare):
        for op in tree.ops:
            if type(op) not in _COMPARE:
                raise Refused(f"'{ast.unparse(tree)}' uses a comparison that is not allowed: < <= > >= == != are")
        for term in (tree.left, *tree.comparators):
            _number(term, depth + 1)
    else:
        raise Refused(f"'{ast.unparse(tree)}' is neither true nor false: compare it, e.g. cosine > 0.99")


def _number(tree: ast.expr, depth: int) -> None:
    """Check what must be a number."""
    if depth > DEEPEST:
        raise Refused("is nested too deeply")
    if isinstance(tree, ast.Constant) and isinstance(tree.value, (int, float)) and not isinstance(tree.value, bool):
        if not -1e300 < tree.value < 1e300:
            raise Refused("holds a number beyond 1e300")
    elif isinstance(tree, ast.Name):
        if tree.id not in NAMES:
            near = difflib.get_close_matches(tree.id, NAMES, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise Refused(f"names '{tree.id}', which is no metric ({hint}known: {', '.join(NAMES)})")
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, (ast.USub, ast.UAdd)):
        _number(tree.operand, depth + 1)
    elif isinstance(tree, ast.BinOp) and type(tree.op) in _BINARY:
        _number(tree.left, depth + 1)
        _number(tree.right, depth + 1)
    elif (
        isinstance(tree, ast.Call)
        and isinstance(tree.func, ast.Name)
        and tree.func.id in _CALLS
        and not tree.keywords
        and (len(tree.args) == 1 if tree.func.id == "abs" else len(tree.args) >= 2)
    ):
        for argument in tree.args:
            _number(argument, depth + 1)
    else:
        raise Refused(f"'{ast.unparse(tree)}' is not allowed: numbers, metrics, + - * /, abs, min and max are")
