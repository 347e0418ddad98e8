"""What a whole sweep costs beside litert-precision-guard 0.1.0: same model, GPU and machine, timed in the same run.

    .venv/bin/python benchmarks/sweep_overhead.py --icd /path/icd.json [--trials 5] [MODEL.tflite …]

The two tools do not do the same work, so the yardstick is the guard's wall clock plus the inference work we do
beyond its own:

  * whole agent processes it has no counterpart for (two references, the noise-floor run, the diagnostics), each by the
    agent's own clock from start to end;
  * in the three processes it does have (cpu, gpu, gpu-fp32) every inference beyond its two (a warm-up and a timed one).

ratio = farm's wall / (guard's wall + that). `strict` counts only the inferences, not the loading and compiling
around them. Farm's canaries and agent are cached (a first sweep makes them); its references are not: every trial has
its own seed. Trials alternate between the two tools. The guard goes into a throw-away virtual environment with the
same ai-edge-litert, and must have run the model on all three backends: one that it gives up on would be no yardstick.

Beside the ratio stand what a busy machine does to it: processor seconds of both tools (`*_cpu_s`), the spread of the
ratio over the trials, and the load average before and after.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SHARED = ("cpu", "gpu", "gpu-fp32")
DEFAULT_MODELS = ("face_detection_short_range.tflite", "healthy_cnn.tflite")
"""A small real model, and about the smallest there can be: its four ops leave next to nothing but overhead to time.
The guard can run both; its random ids, for one, lie outside the embedder's table."""
GUARD_INFERENCES = 2
"""Per backend: one warm-up and one timed run (litert_precision_guard 0.1.0, verifier.py)."""


@dataclass(frozen=True, kw_only=True)
class Extra:
    """Seconds of inference work in one farm run beyond the guard's."""

    processes_s: float
    inferences_s: float


def guard_command(folder: Path) -> Path:
    """Install the guard with our LiteRT version into a virtual environment below `folder`; return its command."""
    venv.create(folder / "guard", with_pip=True)
    version = importlib.metadata.version("ai-edge-litert")
    pip = [str(folder / "guard/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "litert-precision-guard==0.1.0", f"ai-edge-litert=={version}"], check=True)
    return folder / "guard/bin/litert-precision-guard"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of one command, its children included."""

    wall_s: float
    cpu_s: float


def timed(argv: list[str], env: dict[str, str], cwd: Path) -> Cost:
    """Run to the end. Both tools say 1 for findings; anything above is a failure."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{argv[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return Cost(wall_s=wall, cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def check_guard(guard: Path, model: Path, env: dict[str, str], folder: Path) -> None:
    """End here unless the guard really runs the model on every backend (it ends with 1 for findings and for errors)."""
    found = folder / "guard.json"
    timed([str(guard), str(model), "--json-output", str(found)], env, folder)
    backends = json.loads(found.read_text())["backends"] if found.exists() else {}
    ran = [name for name in SHARED if backends.get(name, {}).get("tensors")]
    if ran != list(SHARED):
        raise SystemExit(f"the guard ran {model.name} on {ran or 'no backend'} only; choose another model")


def inferences_of(result: dict[str, Any]) -> list[float]:
    """Milliseconds of every inference of one agent process, warm-up included.

    Until the outputs could be read: a GPU call returns long before it is done, and the guard waits for its outputs too.
    """
    return [result["warmup_ms"], *(ms for run in result["runs"] for ms in run["latency_ms"])]


def extra_of(run: Path) -> Extra:
    """Read what the agents of a run did beyond the guard from its journal and references."""
    processes = inferences = 0.0
    for line in (run / "journal.jsonl").read_text().splitlines():
        outcome = json.loads(line)
        result = outcome["result"]
        if result is None:
            continue
        runs = inferences_of(result)
        config = next(c for c in (*SHARED, "cpu-ref", "cpu-fp16") if outcome["cell"].endswith(f"--{c}"))
        if config in SHARED:
            # The slowest two stand for the guard's; the rest is ours.
            beyond = sum(sorted(runs)[: max(0, len(runs) - GUARD_INFERENCES)])
            processes += beyond
            inferences += beyond
        else:
            processes += result["total_ms"]
            inferences += sum(runs)
    for file in (run / "references").glob("*.json"):
        reference = json.loads(file.read_text())
        for name in ("first", "second", "floor"):
            if reference[name] is not None:
                processes += reference[name]["total_ms"]
                inferences += sum(inferences_of(reference[name]))
    return Extra(processes_s=processes / 1000, inferences_s=inferences / 1000)


def variants(model: Path, count: int, folder: Path) -> list[Path]:
    """Return `count` models of the same work and different content (bytes after the flatbuffer belong to no table)."""
    made = []
    for number in range(count):
        made.append(folder / f"{model.stem}-{number}.tflite")
        made[-1].write_bytes(model.read_bytes() + bytes(16 * number))
    return made


def compare(models: list[Path], guard: Path, env: dict[str, str], folder: Path, trials: int) -> dict[str, float]:
    """Time both tools over the models and return medians (seconds) and ratios."""
    farm = [sys.executable, "-m", "farm", "sweep", *map(str, models), "--config", ",".join(SHARED)]
    timed([*farm, "--out", str(folder / "warm")], env, folder)
    check_guard(guard, models[0], env, folder)
    load = os.getloadavg()[0]
    farms, guards, farm_cpu, guard_cpu, lenient, strict = [], [], [], [], [], []
    for trial in range(trials):
        out = folder / f"runs-{len(models)}-{trial}"
        ours = timed([*farm, "--seed", str(1000 + trial), "--out", str(out)], env, folder)
        theirs = [timed([str(guard), str(model), "--seed", str(trial)], env, folder) for model in models]
        farms.append(ours.wall_s)
        guards.append(sum(cost.wall_s for cost in theirs))
        farm_cpu.append(ours.cpu_s)
        guard_cpu.append(sum(cost.cpu_s for cost in theirs))
        run = next(p for p in out.iterdir() if (p / "plan.json").is_file())
        extra = extra_of(run)
        lenient.append(farms[-1] / (guards[-1] + extra.processes_s))
        strict.append(farms[-1] / (guards[-1] + extra.inferences_s))
    return {
        "models": len(models),
        "farm_s": statistics.median(farms),
        "guard_s": statistics.median(guards),
        "ratio": statistics.median(lenient),
        "ratio_best": min(lenient),
        "ratio_worst": max(lenient),
        "ratio_strict": statistics.median(strict),
        "farm_over_guard": statistics.median(f / g for f, g in zip(farms, guards, strict=True)),
        "farm_cpu_s": statistics.median(farm_cpu),
        "guard_cpu_s": statistics.median(guard_cpu),
        "load_before": load,
        "load_after": os.getloadavg()[0],
    }


def main() -> None:
    """Print one JSON line per comparison: one model, then ten models in one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help=f"small models (default: {', '.join(DEFAULT_MODELS)})")
    parser.add_argument("--icd", type=Path, help="Vulkan driver manifest for both tools (default: the own GPU)")
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--counts", default="1,10", help="models in one command (default: 1,10)")
    parser.add_argument("--guard", type=Path, help="an installed litert-precision-guard command (default: install it)")
    options = parser.parse_args()
    models = [path.resolve() for path in options.models or (HERE / "demo" / name for name in DEFAULT_MODELS)]
    with tempfile.TemporaryDirectory(prefix="farm-bench-") as name:
        folder = Path(name)
        guard = options.guard or guard_command(folder)
        env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        env.pop("FARM_CACHE_DIR", None)
        # Installed packages have their bytecode beside them; a machine that forbids it would time the Python compiler.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        if options.icd:
            env["VK_ICD_FILENAMES"] = str(options.icd.resolve())
        for model in models:
            for count in map(int, options.counts.split(",")):
                work = folder / f"{model.stem}-{count}"
                work.mkdir()
                found = compare(variants(model, count, work), guard, env, work, options.trials)
                print(json.dumps({"model": model.name, **{k: round(v, 3) for k, v in found.items()}}), flush=True)


if __name__ == "__main__":
    main()
