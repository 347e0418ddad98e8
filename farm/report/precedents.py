"""Public reports whose pattern a finding may share. Data only: what must hold for a report to be named.

Titles are our own words for the thread. A precedent is a pointer for the reader, never part of a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

LITERT = "https://github.com/google-ai-edge/LiteRT/issues/"
TENSORFLOW = "https://github.com/tensorflow/tensorflow/issues/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Precedent:
    """Named when every field that is set holds.

    causes, reasons: one of them is the finding's. ops: all are in the model's graph. bad_output_ends_in: the op that
    makes a failing output, in a model with two outputs or more. gpu, gpu_api: regular expressions, ignoring case.
    """

    title: str
    link: str
    causes: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    ops: frozenset[str] = frozenset()
    bad_output_ends_in: str | None = None
    gpu: str | None = None
    gpu_api: str | None = None


WRONG_VALUES = frozenset({"SCALE_ERROR", "PRECISION_DEGRADATION", "VALUE_MISMATCH"})

PRECEDENTS: tuple[Precedent, ...] = (
    Precedent(
        title="LiteRT #7693: an embedding model returns all zeros on a Mac's GPU unless FP32 is forced",
        link=f"{LITERT}7693",
        causes=frozenset({"FP16_RANGE"}),
        reasons=frozenset({"SILENT_ZERO_VECTOR"}),
    ),
    Precedent(
        title="LiteRT #9249: SUM adds up in FP16 on the GPU; a total above 65504 overflows",
        link=f"{LITERT}9249",
        causes=frozenset({"FP16_RANGE"}),
        reasons=frozenset({"NUMERICAL_INSTABILITY", "SATURATION"}),
        ops=frozenset({"SUM"}),
    ),
    Precedent(
        title="TensorFlow #38825: the GPU returns infinities where the CPU is fine",
        link=f"{TENSORFLOW}38825",
        causes=frozenset({"FP16_RANGE"}),
        reasons=frozenset({"NUMERICAL_INSTABILITY"}),
    ),
    Precedent(
        title="TensorFlow #52794: large FP16 error on the GPU, tiny in FP32",
        link=f"{TENSORFLOW}52794",
        causes=frozenset({"FP16_PRECISION", "FP16_ACCUMULATION"}),
    ),
    Precedent(
        title="LiteRT #8599: an ADD that is an output and also consumed returns one of its operands",
        link=f"{LITERT}8599",
        causes=frozenset({"KERNEL_BUG"}),
        reasons=WRONG_VALUES,
        bad_output_ends_in="ADD",
    ),
    Precedent(
        title="LiteRT #9272: PAD on a rank-3 tensor shifts rows at any precision",
        link=f"{LITERT}9272",
        causes=frozenset({"KERNEL_BUG"}),
        reasons=WRONG_VALUES,
        ops=frozenset({"PAD"}),
    ),
    Precedent(
        title="TensorFlow #56983: the GPU delegate fuses a LayerNorm's mean and variance wrongly",
        link=f"{TENSORFLOW}56983",
        causes=frozenset({"KERNEL_BUG"}),
        reasons=WRONG_VALUES | {"SILENT_ZERO_VECTOR", "NUMERICAL_INSTABILITY"},
        ops=frozenset({"MEAN", "RSQRT"}),
    ),
    Precedent(
        title="LiteRT #8619: a fully delegated decoder is wrong on Mali and Adreno, and FP16 is not why",
        link=f"{LITERT}8619",
        causes=frozenset({"KERNEL_BUG"}),
        reasons=WRONG_VALUES,
        gpu="mali|adreno",
    ),
    Precedent(
        title="LiteRT #8065: through WebGPU on Adreno only the first run is right",
        link=f"{LITERT}8065",
        reasons=frozenset({"NONDETERMINISTIC"}),
        gpu="adreno",
        gpu_api="webgpu",
    ),
    Precedent(
        title="ExecuTorch #21939: outputs of an Adreno differ from run to run",
        link="https://github.com/pytorch/executorch/issues/21939",
        reasons=frozenset({"NONDETERMINISTIC"}),
        gpu="adreno",
    ),
)


def matching(
    *,
    cause: str | None,
    reasons: Collection[str],
    ops: Collection[str],
    bad_tails: Collection[str],
    gpu: str,
    gpu_api: str,
) -> tuple[tuple[str, str], ...]:
    """Return (title, link) of the precedents whose pattern holds.

    bad_tails: the last op of each failing output, in a model with two outputs or more.
    """
    return tuple(
        (p.title, p.link)
        for p in PRECEDENTS
        if (not p.causes or cause in p.causes)
        and (not p.reasons or not p.reasons.isdisjoint(reasons))
        and p.ops.issubset(ops)
        and (p.bad_output_ends_in is None or p.bad_output_ends_in in bad_tails)
        and (p.gpu is None or re.search(p.gpu, gpu, re.IGNORECASE))
        and (p.gpu_api is None or re.search(p.gpu_api, gpu_api, re.IGNORECASE))
    )
