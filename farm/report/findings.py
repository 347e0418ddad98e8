"""A judge's finding in plain words: what failed, where, why, what was seen to help and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farm.cases import Case
from farm.configs import Config
from farm.hazards import Hazard
from farm.judge.verdict import Finding
from farm.report import precedents
from farm.report.snippets import snippets
from farm.report.value import HAZARDS, MatrixCell, MatrixFinding, MatrixHazard
from farm.report.words import milliseconds, ratio

CAUSES = {
    "FP16_RANGE": "Some values in this model do not fit into 16-bit floats (beyond 65504 they overflow, below about "
    "6e-8 they vanish), and this config computes in 16 bits.",
    "FP16_PRECISION": "16-bit floats are too coarse for this model: the CPU forced to FP16 is wrong in the same way, "
    "so it is the model's sensitivity and not this GPU.",
    "FP16_ACCUMULATION": "The model survives FP16 on the CPU, and this GPU is right in FP32: the delegate's own FP16 "
    "kernels or its FP16 accumulation lose the precision.",
    "KERNEL_BUG": "The GPU is wrong at every precision that ran, with the whole model on it: a kernel or a graph "
    "rewrite of the delegate is at fault, not FP16.",
    "PARTITION_BOUNDARY": "The GPU is wrong at every precision that ran, and only part of the model is on it: suspect "
    "the hand-over between CPU and GPU first.",
}
"""What each cause of docs/judging.md's table means to someone who ships an app."""

_DOES = {
    "SILENT_ZERO_VECTOR": "returns zeros, without any error,",
    "NUMERICAL_INSTABILITY": "returns NaN or infinity",
    "SATURATION": "is stuck at 65504, FP16's largest value,",
    "SCALE_ERROR": "comes out at the wrong scale",
    "PRECISION_DEGRADATION": "loses too much precision",
    "VALUE_MISMATCH": "returns wrong values",
    "SHAPE_MISMATCH": "returns an output of the wrong shape or type",
    "MISSING_OUTPUT": "leaves an output out",
    "NONDETERMINISTIC": "gives a different answer from run to run",
    "INPUT_INDEPENDENT": "gives the same answer whatever the input",
    "CRASH": "crashes",
    "TIMEOUT": "does not finish in time",
    "INVALID_MODEL": "is a damaged file",
    "RUNTIME_ERROR": "makes the runtime report an error",
    "OUT_OF_MEMORY": "runs out of memory",
}


def explain(
    finding: Finding, *, case: Case, cells: Sequence[MatrixCell], configs: Mapping[str, Config]
) -> MatrixFinding:
    """Turn one finding into words. `finding.remedy` must already be vouched for by a cell among `cells`."""
    here = {
        c.config: c
        for c in cells
        if (c.device, c.model, c.signature, c.runtime)
        == (finding.device, case.model, case.signature_key, finding.runtime)
    }
    by_id = {c.id: c for c in cells}
    failing = [by_id[cell] for cell in finding.failing if cell in by_id]
    reasons = list(dict.fromkeys(reason for cell in failing for reason in cell.reasons))
    gpu = next((c.adapter for c in failing if c.adapter), None) or next((c.gpu for c in failing), "")
    remedy_text, advice = _remedy(finding, here, failing)
    lines, note = snippets(configs[advice]) if advice is not None and advice in configs else ({}, "")
    return MatrixFinding(
        device=finding.device,
        model=case.model,
        signature=case.signature_key,
        runtime=finding.runtime,
        failing=finding.failing,
        cause=finding.cause,
        headline=_headline(case.model, finding.device, gpu, failing, reasons),
        explanation=_explanation(finding, failing),
        remedy=finding.remedy,
        remedy_text=remedy_text,
        latency_ratio=finding.latency_ratio,
        snippets=lines,
        snippet_note=note,
        precedents=precedents.matching(
            cause=finding.cause,
            reasons=reasons,
            ops=case.graph.op_histogram if case.graph else (),
            bad_tails=_bad_tails(case, failing),
            gpu=gpu,
            gpu_api=" ".join(c.gpu_api for c in failing if c.gpu_api),
        ),
        hazards=tuple(_hazard(h) for h in finding.hazards[:HAZARDS]),
        hazards_found=len(finding.hazards),
    )


def _hazard(hazard: Hazard) -> MatrixHazard:
    return MatrixHazard(
        kind=hazard.kind,
        op=hazard.op,
        op_index=hazard.op_index,
        tensor=hazard.tensor_name,
        value=hazard.value,
        elements=hazard.elements,
        certain=hazard.certain,
        message=hazard.message,
        subgraph=hazard.subgraph,
    )


def _explanation(finding: Finding, failing: Sequence[MatrixCell]) -> str:
    meaning = CAUSES.get(finding.cause or "", "")
    seen = finding.explanation.strip()
    if seen and not seen.endswith((".", "!", "?")):
        seen += "."
    # The name of a config stays as one writes it.
    alone = seen if any(seen.startswith(cell.config) for cell in failing) else seen[:1].upper() + seen[1:]
    parts = [meaning, f"Seen here: {seen}" if meaning and seen else alone]
    if failing and all(cell.known is not None for cell in failing):
        parts.append("The inventory lists this result as known, so it is not counted.")
    return " ".join(filter(None, parts))


def _headline(model: str, device: str, gpu: str, failing: Sequence[MatrixCell], reasons: Sequence[str]) -> str:
    does = _DOES.get(reasons[0], "fails") if reasons else "fails"
    where = f"{gpu} ({device})" if gpu and gpu != device else device
    names = list(dict.fromkeys(cell.config for cell in failing))
    return f"{model} {does} on {where} with {_and(names)}"


def _remedy(finding: Finding, here: Mapping[str, MatrixCell], failing: Sequence[MatrixCell]) -> tuple[str, str | None]:
    """(what was seen to help, the config whose lines to paste)."""
    cpu = here.get("cpu")
    cpu_good = cpu is not None and cpu.verdict in ("pass", "warn")
    if finding.remedy is not None and finding.remedy in here:
        cure = here[finding.remedy]
        how = "passed" if cure.verdict == "pass" else "passed with a warning"
        parts = [f"{cure.config} {how} on this device{_cost(finding, cure, failing)}."]
        if cure.delegation == "partial":
            parts.append("Part of the model ran on the CPU there.")
        if cpu_good and cpu is not None and cpu.latency_ms and cure.latency_ms and cure is not cpu:
            times = cure.latency_ms.median / cpu.latency_ms.median if cpu.latency_ms.median else 0
            parts.append(f"The CPU passed too, at {milliseconds(cpu.latency_ms.median)}.")
            if times > 1:
                parts.append(f"Note that {cure.config} is slower than the CPU here ({ratio(times)}).")
        return " ".join(parts), cure.config
    failed = {cell.config for cell in failing}
    tried = [c.config for c in here.values() if c.config not in failed and not c.diagnostic and c.config != "cpu"]
    seen = "Nothing we ran on this device fixes it"
    if not tried and len(failed) < 2:
        seen = "No other config was run on this device, so no cure is known"
    if cpu_good:
        cost = f" ({milliseconds(cpu.latency_ms.median)})" if cpu and cpu.latency_ms else ""
        return f"{seen}: use the CPU, which passed{cost}.", "cpu"
    if cpu is None:
        return f"{seen}; the CPU was not run there.", None
    return f"{seen}, and the CPU did not pass either ({cpu.verdict}).", None


def _cost(finding: Finding, cure: MatrixCell, failing: Sequence[MatrixCell]) -> str:
    if finding.latency_ratio is None:
        return f", at {milliseconds(cure.latency_ms.median)}" if cure.latency_ms else ""
    broken = next((c.config for c in failing if c.latency_ms), failing[0].config if failing else "the broken config")
    absolute = f" ({milliseconds(cure.latency_ms.median)})" if cure.latency_ms else ""
    return f", at {ratio(finding.latency_ratio)} the time of {broken}{absolute}"


def _bad_tails(case: Case, failing: Sequence[MatrixCell]) -> set[str]:
    if case.graph is None or len(case.graph.outputs) < 2:
        return set()
    bad = {output.name for cell in failing for output in cell.outputs if output.verdict == "fail"}
    return {output.tail[0] for output in case.graph.outputs if output.name in bad and output.tail}


def _and(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)
