"""From a matrix to what an app should do on which GPU: JSON for its remote config, and one page for managers. Pure.

The rule is cautious: a GPU gets an accelerator only where every judged cell of the model on every device with that GPU
passed; whatever was not tested, or not judged, gets the CPU.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from farm import codec
from farm.configs import CONFIGS
from farm.errors import InvalidInput, Problem
from farm.report.matrix import UNKNOWN_GPU
from farm.report.value import Matrix, MatrixCell

Advice = Literal["safe", "safe-with-fp32", "off"]
PREFERENCE = ("gpu", "gpu-fp16", "gpu-fp16-acc32", "gpu-fp32")
"""First the delegate's default, then what costs least. Backends of one's own choosing are no advice for an app."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What to do where the GPU's name and driver are among these. why: in one sentence, with the evidence.

    drivers: exactly those that were tested; another driver of that GPU is unknown.
    """

    gpu: str
    drivers: tuple[str, ...]
    accelerator: str
    precision: str
    config: str
    advice: Advice
    why: str
    devices: tuple[str, ...]
    cells: tuple[str, ...]
    latency_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """policy.json. evidence_sha256: of the cells the rules rest on, as canonical JSON."""

    schema_version: int = 1
    model: str
    model_sha256: str
    runtime: str
    run: str
    rules: tuple[Rule, ...]
    otherwise: dict[str, str]
    evidence_sha256: str
    notes: tuple[str, ...] = ()


def make_policy(matrix: Matrix, model: str, *, runtime: str | None = None) -> Policy:
    """Make the policy of one model. runtime: by name; None if the run has only one.

    Raises InvalidInput if the run does not hold the model, or holds it on several runtimes and none is named.
    """
    mine = [cell for cell in matrix.cells if cell.model == model and not cell.diagnostic]
    if not mine:
        names = ", ".join(sorted({cell.model for cell in matrix.cells})[:10])
        raise InvalidInput(Problem(message=f"run {matrix.run.id} holds no model '{model}'", cure=f"models: {names}"))
    runtimes = sorted({cell.runtime for cell in mine})
    if runtime is None and len(runtimes) > 1:
        raise InvalidInput(
            Problem(
                message=f"'{model}' ran on {len(runtimes)} runtimes", cure=f"choose --runtime: {', '.join(runtimes)}"
            )
        )
    chosen = runtime or runtimes[0]
    cells = [cell for cell in mine if cell.runtime == chosen]
    if not cells:
        raise InvalidInput(Problem(message=f"'{model}' did not run on {chosen}", cure=f"choose: {', '.join(runtimes)}"))
    drivers = {device.id: device.driver for device in matrix.devices}
    by_gpu: dict[str, list[MatrixCell]] = defaultdict(list)
    for cell in cells:
        if cell.gpu != UNKNOWN_GPU:
            by_gpu[cell.gpu].append(cell)
    rules = tuple(_rule(gpu, found, drivers) for gpu, found in sorted(by_gpu.items()))
    digests = {cell.model_sha256 for cell in cells}
    return Policy(
        model=model,
        model_sha256=digests.pop() if len(digests) == 1 else "",
        runtime=chosen,
        run=matrix.run.id,
        rules=rules,
        otherwise={"accelerator": "cpu", "precision": "fp32", "why": "not tested"},
        evidence_sha256=hashlib.sha256(codec.to_json(cells)).hexdigest(),
        notes=("Measured from a shell process, not from an app.",)
        if any(cell.process == "shell" for cell in cells)
        else (),
    )


def _rule(gpu: str, cells: Sequence[MatrixCell], drivers: dict[str, str]) -> Rule:
    """The first config of PREFERENCE in which everything that is there passed."""
    devices = tuple(dict.fromkeys(cell.device for cell in cells))
    known = tuple(dict.fromkeys(drivers[d] for d in devices if drivers.get(d)))
    by_config: dict[str, list[MatrixCell]] = defaultdict(list)
    for cell in cells:
        by_config[cell.config].append(cell)
    said = []
    for name in PREFERENCE:
        tried = by_config.get(name)
        if not tried:
            continue
        # A known failure is excused in the exit code; for an app it is a failure.
        bad = [cell for cell in tried if cell.verdict != "pass" or cell.delegation not in ("full", "partial")]
        lacking = set(devices) - {cell.device for cell in tried}
        if bad or lacking:
            first = bad[0] if bad else None
            said.append(
                f"{name} {' '.join((first.verdict, *first.reasons))}" if first else f"{name} not run everywhere"
            )
            continue
        times = [cell.latency_ms.median for cell in tried if cell.latency_ms]
        fallback = f" after {'; '.join(said)}" if said else ""
        fp32 = CONFIGS[name].precision == "fp32"
        return Rule(
            gpu=gpu,
            drivers=known,
            accelerator="gpu",
            precision=CONFIGS[name].precision,
            config=name,
            advice="safe-with-fp32" if fp32 and said else "safe",
            why=f"{name} passed in {len(tried)} of {len(tried)} cells on {len(devices)} device(s){fallback}",
            devices=devices,
            cells=tuple(cell.id for cell in tried),
            latency_ms=statistics.median(times) if times else None,
        )
    return Rule(
        gpu=gpu,
        drivers=known,
        accelerator="cpu",
        precision="fp32",
        config="cpu",
        advice="off",
        why="; ".join(said) or "no GPU config was run",
        devices=devices,
        cells=tuple(cell.id for cell in cells if cell.config in PREFERENCE),
    )


def page(policy: Policy) -> str:
    """One page for people who decide: per GPU safe, safe with FP32, or off (Markdown)."""
    words = {"safe": "safe", "safe-with-fp32": "safe with FP32", "off": "off: use the CPU"}
    lines = [
        f"# {_cell(policy.model)} on GPUs",
        "",
        f"Runtime {_cell(policy.runtime)}, run {_cell(policy.run)}. Every GPU or driver that is not listed: CPU.",
        "",
        "| GPU | driver | advice | latency | why |",
        "|---|---|---|---|---|",
    ]
    for rule in policy.rules:
        ms = f"{rule.latency_ms:.3g} ms" if rule.latency_ms is not None else ""
        cells = (rule.gpu, ", ".join(rule.drivers) or "unknown", words[rule.advice], ms, rule.why)
        lines.append("| " + " | ".join(_cell(text) for text in cells) + " |")
    return "\n".join([*lines, "", *policy.notes, f"Evidence: sha256 {policy.evidence_sha256}."])


def _cell(text: str) -> str:
    return "".join("\\" + c if c in "\\`*_|[]<>#" else c if c.isprintable() else " " for c in text)
