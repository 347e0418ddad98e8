"""A realistic judged run, made through build_matrix: two GPUs, five models, five configs, every verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from farm.agent_protocol import AgentResult, RunData
from farm.cases import Case, InputArray, InputSet
from farm.configs import CONFIGS
from farm.defaults import Limits
from farm.delegation import Delegation
from farm.graph import GraphFacts, OutputFacts
from farm.judge.verdict import CellVerdict, Finding, OutputVerdict
from farm.outcome import Failure, Outcome, PrecisionClass, Reference, Thermal
from farm.plan import Cell, Known, Plan, PlannedDevice
from farm.report.matrix import Matrix, build_matrix

DEVICES = {"lvp": "llvmpipe (LLVM 15.0.6, 256 bits)", "pixel": "Mali-G715"}
CONFIG_NAMES = ("cpu", "gpu", "gpu-fp32", "cpu-ref", "cpu-fp16")
RUNTIME = "litert-2.3.0"
MODELS = ("embedder_300m", "segment_person", "pose", "classifier_int8", "speech_logits")
FP16_BANDS = {"pass_snr_db": 35.0, "warn_snr_db": 20.0}
EVIDENCE = {"fp32": "all three canaries right to 1e-6", "fp16": "ok right to 1e-3, underflow 0, overflow NaN"}


def cell_id(device: str, model: str, config: str) -> str:
    return f"{device}--{model}--{config}"


def result(latency_ms: float, *, runs: tuple[RunData, ...] | None = None) -> AgentResult:
    times = tuple(latency_ms * factor for factor in (0.9, 0.95, 1.0, 1.05, 1.5))
    return AgentResult(
        protocol=1,
        agent_version="1",
        nonce="n",
        ok=True,
        stage="done",
        runs=runs if runs is not None else (RunData(set=0, latency_ms=times), RunData(set=1, latency_ms=(999.0,))),
        compile_ms=12.5,
        peak_rss_bytes=48 << 20,
    )


def case(model: str, *, ops: dict[str, int] | None = None, tail: tuple[str, ...] = ("FULLY_CONNECTED",)) -> Case:
    output = OutputFacts(
        name="out",
        tensor=1,
        dtype="float32",
        shape=(1, 8),
        shape_signature=None,
        quantization=None,
        tail=tail,
        unwritten=False,
        alias_of=None,
        constant=False,
        depends_on_inputs=True,
        clipped_unit=False,
        large_reduction=None,
    )
    histogram = ops or {"FULLY_CONNECTED": 2}
    graph = GraphFacts(
        inputs=(),
        outputs=(output, replace(output, name="aux")),
        op_count=sum(histogram.values()),
        op_histogram=histogram,
        stateful=False,
        hybrid_ops=(),
        custom_ops=(),
        inf_constants=False,
        random_ops=(),
        fp16_hazards=(),
        densify=False,
    )
    array = InputArray(name="in", dtype="float32", shape=(1, 8), sha256="a" * 64, size_bytes=32, recipe="seed 0")
    return Case(
        id=model,
        model=model,
        model_path=f"{model}.tflite",
        model_sha256=f"{len(model):064x}",
        model_size_bytes=1,
        signature=0,
        signature_key="serving_default",
        graph=graph,
        input_sets=tuple(InputSet(name=f"set{n}", origin="synthetic", arrays=(array,)) for n in (0, 1)),
    )


def output(
    verdict: str, snr: float, *reasons: str, kind: str = "values", limits: dict[str, float] | None = None
) -> OutputVerdict:
    return OutputVerdict(
        name="out",
        kind=kind,
        kind_source="default",
        input_set="set1",
        verdict=verdict,  # type: ignore[arg-type]
        reasons=reasons,
        metrics={
            "snr_db": snr,
            "cosine": 1 - 10 ** (-max(snr, 0) / 10) / 2,
            "max_abs": 3.1e-4,
            "relative_l2": 1.2e-3,
            "norm_ratio": 1.0,
        },
        limits=FP16_BANDS if limits is None else limits,
        message=f"SNR {snr:.1f} dB against a pass limit of 35 dB; a limit of {snr - 1:.0f} dB would pass",
    )


def plan(
    models: tuple[str, ...] = MODELS, devices: dict[str, str] | None = None, configs: tuple[str, ...] = CONFIG_NAMES
) -> Plan:
    devices = DEVICES if devices is None else devices
    tails = {"embedder_300m": {"FULLY_CONNECTED": 40, "SUM": 3}, "pose": {"CONV_2D": 60, "ADD": 10, "DENSIFY": 4}}
    return Plan(
        run_id="20260301T021500-4f9a1c",
        created="2026-03-01T02:15:00Z",
        farm_version="0.1.0",
        inventory_sha256="b" * 64,
        limits=Limits(),
        devices=tuple(
            PlannedDevice(id=d, transport="local" if d == "lvp" else "adb", profile=None if d == "lvp" else "mali")
            for d in devices
        ),
        configs=tuple(CONFIGS[name] for name in configs),
        cases=tuple(case(model, ops=tails.get(model)) for model in models),
        cells=tuple(
            Cell(id=cell_id(d, m, c), device=d, case=m, config=c, runtime=RUNTIME)
            for d in devices
            for m in models
            for c in configs
        ),
        known=(Known(model="classifier_int8", device="pixel", config="gpu", verdict="fail"),),
    )


def kwargs() -> dict[str, Any]:
    """Arguments for build_matrix."""
    made = plan()
    outcomes: dict[str, Outcome] = {}
    verdicts: dict[str, CellVerdict] = {}
    speed = {"cpu": 42.0, "gpu": 9.5, "gpu-fp32": 14.25, "cpu-ref": 170.0, "cpu-fp16": 55.0}

    def put(device: str, model: str, config: str, verdict: CellVerdict, **changes: Any) -> None:
        key = cell_id(device, model, config)
        gpu = config.startswith("gpu")
        outcome = Outcome(
            cell=key,
            attempts=1,
            started="2026-03-01T02:15:01Z",
            finished="2026-03-01T02:15:02Z",
            wall_s=1.0,
            result=result(speed[config]),
            failure=None,
            delegation=Delegation(
                level="full" if gpu else "none",
                gpu_api=("WebGPU/Vulkan" if device == "lvp" else "OpenCL") if gpu else None,
                adapter=DEVICES[device] if gpu else None,
            ),
            log_tail="INFO: loaded\nINFO: Selected adapter\n",
            thermal=Thermal(before_c=31.5, after_c=33.0) if device == "pixel" else Thermal(),
        )
        outcomes[key] = replace(outcome, **changes)
        verdicts[key] = replace(verdict, cell=key)

    good = CellVerdict(
        cell="", verdict="pass", message="all outputs within limits", outputs=(output("pass", 47.2),), floor_db=121.0
    )
    for cell in made.cells:
        put(cell.device, cell.case, cell.config, good)
    zeros = CellVerdict(
        cell="",
        verdict="fail",
        reasons=("SILENT_ZERO_VECTOR",),
        message="out is all zeros where the reference has norm 1.0",
        outputs=(
            output(
                "fail", 0.0, "SILENT_ZERO_VECTOR", kind="embedding", limits={"pass_cosine": 0.999, "fail_cosine": 0.99}
            ),
        ),
        floor_db=118.0,
    )
    put("pixel", "embedder_300m", "gpu", zeros)
    put("pixel", "embedder_300m", "cpu-fp16", zeros)
    wrong = CellVerdict(
        cell="",
        verdict="fail",
        reasons=("PRECISION_DEGRADATION",),
        message="out: cosine 0.456",
        outputs=(output("fail", 1.1, "PRECISION_DEGRADATION"), replace(output("pass", 44.0), name="aux")),
        notes=("4 ops left on the CPU",),
    )
    partial = Delegation(
        level="partial", cpu_ops=("DENSIFY: unsupported",), gpu_api="WebGPU/Vulkan", adapter=DEVICES["lvp"]
    )
    for config in ("gpu", "gpu-fp32"):
        put("lvp", "pose", config, wrong, delegation=partial)
    put(
        "lvp",
        "segment_person",
        "gpu",
        CellVerdict(cell="", verdict="warn", message="mask: max error 0.03", outputs=(output("warn", 28.0),)),
    )
    put(
        "pixel",
        "segment_person",
        "gpu-fp32",
        CellVerdict(cell="", verdict="error", reasons=("CRASH",), message="died with signal 11 while compiling"),
        result=None,
        failure=Failure(code="CRASH", message="died with signal 11", stage="compile", signal=11),
        log_tail="F libLiteRt: <b>fatal</b> signal 11 (SIGSEGV)\n",
    )
    put(
        "lvp",
        "classifier_int8",
        "gpu",
        CellVerdict(cell="", verdict="unsupported", message="the delegate refused GATHER: Only support 1D indices"),
        result=None,
        failure=Failure(code="UNSUPPORTED", message="Some ops are not accelerated", stage="compile"),
        delegation=Delegation(level="none", cpu_ops=("GATHER: Only support 1D indices",)),
    )
    put(
        "pixel",
        "classifier_int8",
        "gpu",
        CellVerdict(
            cell="",
            verdict="fail",
            reasons=("VALUE_MISMATCH",),
            message="3 % of steps differ",
            outputs=(output("fail", 12.0, "VALUE_MISMATCH"),),
        ),
    )
    put(
        "pixel",
        "speech_logits",
        "gpu",
        CellVerdict(cell="", verdict="infra", reasons=("DEVICE_LOST",), message="the link broke while pulling outputs"),
        result=None,
        failure=Failure(code="DEVICE_LOST", message="adb: device 'X' not found", infra=True),
        attempts=2,
    )
    put(
        "lvp",
        "speech_logits",
        "gpu",
        CellVerdict(
            cell="",
            verdict="inconclusive",
            reasons=("REFERENCE_UNSTABLE",),
            message="the two CPU kernel sets agree to 31 dB only",
            reference_status="unstable",
            floor_db=31.0,
        ),
    )
    for config in ("gpu-fp32", "cpu-ref", "cpu-fp16"):
        del outcomes[cell_id("pixel", "speech_logits", config)]
        del verdicts[cell_id("pixel", "speech_logits", config)]

    findings = (
        Finding(
            device="pixel",
            case="embedder_300m",
            runtime=RUNTIME,
            failing=(cell_id("pixel", "embedder_300m", "gpu"),),
            cause="FP16_RANGE",
            explanation="cpu-fp16 gives zeros as well, gpu-fp32 passes.",
            remedy="gpu-fp32",
            latency_ratio=1.5,
        ),
        Finding(
            device="lvp",
            case="pose",
            runtime=RUNTIME,
            failing=(cell_id("lvp", "pose", "gpu"), cell_id("lvp", "pose", "gpu-fp32")),
            cause="PARTITION_BOUNDARY",
            explanation="DENSIFY ran on the CPU.",
        ),
    )
    classes = {"gpu": "fp16", "gpu-fp32": "fp32", "cpu": "fp32", "cpu-fp16": "fp16", "cpu-ref": "fp32"}
    return {
        "plan": made,
        "outcomes": outcomes,
        "verdicts": verdicts,
        "findings": findings,
        "precision": [
            PrecisionClass(device=d, runtime=RUNTIME, config=c, value=value, evidence=EVIDENCE[value])  # type: ignore[arg-type]
            for d in DEVICES
            for c, value in classes.items()
        ],
        "facts": {
            "lvp": {
                "os": "Debian GNU/Linux 12",
                "os_build": "6.1",
                "cpu": "x86_64",
                "cpu_count": 2,
                "boot_id": "secret",
            },
            "pixel": {
                "os": "Android 16",
                "model": "Google Pixel 8",
                "soc": "Tensor G3",
                "gpus": ["Mali-G715"],
                "gpu_driver": "r48p0",
            },
        },
        "references": {
            m: Reference(case=m, first=None, second=None, floor=None, floor_note="custom op" if m == "pose" else "")
            for m in MODELS
        },
        "known": {
            cell_id("pixel", "classifier_int8", "gpu"): {
                "verdict": "fail",
                "reason": "VALUE_MISMATCH",
                "link": "https://example.com/issue/1",
                "until": "2027-01-01",
            }
        },
        "known_problems": ["known: segment_person on lvp was expected to fail, but warned: remove the entry"],
        "exit_code": 1,
        "finished": "2026-03-01T02:21:44Z",
    }


def sample() -> Matrix:
    return build_matrix(**kwargs())
