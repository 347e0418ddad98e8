"""A farm's state as Prometheus text, for node_exporter's textfile collector: made from nights and their matrices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from farm.nightly.value import Night
from farm.report.value import Matrix

VERDICTS = ("pass", "warn", "fail", "error", "unsupported", "inconclusive", "infra", "not_run")
Sample = tuple[Mapping[str, str], float]


def render(nights: Sequence[Night], matrix: Matrix | None, *, now: float) -> str:
    """Return the exposition text (version 0.0.4). nights: oldest first. matrix: of the last night. now: Unix time.

    Every verdict is there with 0 too, so that an alert on `fail` sees a series from the start. Ages of what never
    happened are left out: absent() is the alert for that.
    """
    last = nights[-1] if nights else None
    good = next((n for n in reversed(nights) if n.good), None)
    out: list[str] = []
    if last is not None:
        counts = [({"verdict": word}, float(last.verdicts.get(word, 0))) for word in VERDICTS]
        _add(out, "farm_night_cells", "Counted cells of the last night by verdict.", counts)
        _add(out, "farm_night_exit_code", "Exit code of the last night.", [({}, float(last.exit_code))])
        _add(
            out,
            "farm_night_uncovered",
            "Required (model, GPU family) judged on no device.",
            [({}, len(last.uncovered))],
        )
        new = len(last.diff.of("new_failure")) if last.diff else len(last.failing)
        _add(out, "farm_night_new_failures", "Failures that the last good night did not have.", [({}, float(new))])
        _add(out, "farm_night_age_seconds", "Since the last night ended.", [({}, now - _unix(last.finished))])
        _add(out, "farm_store_bytes", "The folder of runs.", [({}, float(last.used_bytes))])
    if good is not None:
        _add(
            out, "farm_good_night_age_seconds", "Since the last night ended that judged all it had to.",
            [({}, now - _unix(good.finished))],
        )  # fmt: skip
    if matrix is not None and last is not None:
        away = {device.device for device in last.away}
        up = [({"device": d.id, "gpu": d.gpu}, float(d.id not in away)) for d in matrix.devices]
        _add(out, "farm_device_up", "1 if the device gave an answer in the last night.", up)
        for fact, name, text in (
            ("battery_percent", "farm_device_battery_percent", "Charge of the device's battery."),
            ("battery_temperature_c", "farm_device_battery_celsius", "Temperature of the device's battery."),
        ):
            values = [({"device": d.id}, v) for d in matrix.devices if (v := _number(d.facts.get(fact))) is not None]
            _add(out, name, text, values)
    return "".join(f"{line}\n" for line in out)


def _add(out: list[str], name: str, text: str, samples: Iterable[Sample]) -> None:
    lines = [f"{name}{_labels(labels)} {float(value)!r}" for labels, value in samples]
    if lines:
        out += [f"# HELP {name} {text}", f"# TYPE {name} gauge", *lines]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _unix(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
