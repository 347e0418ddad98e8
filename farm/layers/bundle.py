"""What to attach to a bug report: the named op as a model of its own, its inputs, both outputs, the environment.

Tensor and file names of the user's model appear nowhere in it; folders, serials and host names neither.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from farm import __version__
from farm.codec import to_json
from farm.errors import InvalidInput, Problem
from farm.layers.bench import Bench
from farm.layers.cut import cut, island
from farm.layers.study import Study
from farm.layers.sweep import Sweep
from farm.layers.view import View

PUBLIC_FACTS = ("platform", "os", "os_build", "model", "machine", "soc", "gpu", "driver", "cpu")
"""Facts of a device that say nothing of its owner."""


def write_bundle(
    folder: Path, study: Study, view: View, sweep: Sweep, device: Bench, host: Bench, facts: Mapping[str, Any]
) -> Study:
    """Write `DEVICE--CONFIG--opN/` and return the study that names it, or the study as it is where the op cannot be cut
    out. Raises InvalidInput where the folder cannot be written."""
    first = study.first
    if first is None:
        return study
    part = island(view, first.layer.op, frozenset(sweep.golden), "op")
    if part is None:
        return study
    made = cut(view, [part])
    confirmed = first.confirmed
    alone = confirmed.single_seen if confirmed is not None else None
    tensor = first.layer.tensor
    arrays = {}
    given = {t: i for i, (_, t) in enumerate(view.model.signatures[view.signature].inputs)}
    fed = _fed(sweep, device, given)
    for position, (_, t) in enumerate(made.inputs):
        arrays[f"in{position}"] = fed[t] if t in given else host.load(sweep.golden[t])
    target = folder / _slug(f"{study.device}--{study.config}--op{first.layer.op}")
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / "op.tflite").write_bytes(made.data)
        _save(target / "inputs.npz", arrays)
        _save(target / "expected.npz", {"out0": host.load(sweep.golden[tensor])})
        seen = {"in_graph": device.load(sweep.seen[tensor])}
        if alone is not None:
            seen["alone"] = device.load(alone)
        _save(target / "seen.npz", seen)
        lock = _lock(study, device, facts, made.data)
        (target / "environment.json").write_bytes(to_json(lock, indent=2))
        (target / "README.md").write_text(_readme(study, lock), encoding="utf-8")
    except OSError as e:
        raise InvalidInput(
            Problem(message=f"the bundle cannot be written: {e.strerror or e}", file=str(target), cure="choose --out")
        ) from e
    return dataclasses.replace(study, bundle=str(target))


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    with path.open("wb") as f:
        np.savez(f, **arrays)


def _fed(sweep: Sweep, device: Bench, given: Mapping[int, int]) -> dict[int, np.ndarray]:
    """The model's own inputs as fed, by tensor."""
    return {t: device.objects.load(*device.fed[sweep.input_set][i]) for t, i in given.items()}


def _lock(study: Study, device: Bench, facts: Mapping[str, Any], model: bytes) -> dict[str, Any]:
    return {
        "farm_version": __version__,
        "runtime": device.runtime.name,
        "runtime_files": {name: sha for name, (sha, _) in sorted(device.runtime.files.items())},
        "config": device.config.name,
        "precision_asked": device.config.precision,
        "precision_measured": study.precision_class,
        "delegation": study.delegation,
        "device": {k: facts[k] for k in PUBLIC_FACTS if facts.get(k)},
        "adapter": study.gpu,
        "op_sha256": hashlib.sha256(model).hexdigest(),
        "model_sha256": study.model_sha256,
    }


def _readme(study: Study, lock: Mapping[str, Any]) -> str:
    first = study.first
    assert first is not None
    label = first.confirmed.label if first.confirmed is not None else "unconfirmed"
    reasons = "\n".join(f"- {r.code}: {r.sentence}." for r in first.reasons)
    shown = "" if label == "intrinsic" else (
        "\nAlone, this op is right; it goes wrong inside its graph. `seen.npz` holds `in_graph`, what the whole model "
        "gave there.\n"
    )  # fmt: skip
    return f"""# {first.layer.op_name} computes wrong values on {_clean(study.gpu) or "this device"}

`op.tflite` is one {first.layer.op_name} (op {first.layer.op} of its model). In `{study.config}` on {lock["runtime"]}
({study.precision_class}) its output differs from the CPU's: {first.health.why}. Verdict: {label}.

{reasons}
{shown}
| file | holds |
|---|---|
| `op.tflite` | the op and the constants it reads; inputs in0, in1, … |
| `inputs.npz` | its inputs, computed by XNNPACK in FP32 |
| `expected.npz` | out0: what XNNPACK gives for them |
| `seen.npz` | in_graph: what the device gave within the model; alone: what it gave for this file, where it ran |
| `environment.json` | runtime, device, driver, digests |

To see it again:

```sh
pip install litert-farm
farm sweep op.tflite --inputs inputs.npz --config {_configs(study.config)}
```
"""


def _configs(seen: str) -> str:
    """What to run again: with both GPU precisions the sweep can tell the cause."""
    return ",".join(dict.fromkeys(("cpu", "gpu", "gpu-fp32", seen)))


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._~-]+", "_", text).lstrip(".-") or "bundle"


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9 ._()/,:+-]", "?", text)[:120]
