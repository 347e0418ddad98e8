"""A study for other programs: CSV, Model Explorer node data, JSON. Pure."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from farm.codec import to_json
from farm.layers.health import MAX_DB
from farm.layers.study import Study

COLUMNS = (
    "device", "config", "precision_class", "op", "op_name", "tensor", "name", "dtype", "shape", "depth", "own_output",
    "bad", "masked", "snr_db", "cosine", "nrmse", "max_abs", "ref_max", "new_nonfinite", "why",
)  # fmt: skip
THRESHOLDS = ((20.0, "#c62828"), (35.0, "#ef6c00"), (50.0, "#f9a825"), (80.0, "#9ccc65"), (MAX_DB, "#2e7d32"))
"""Upper edge in dB → colour of a node (the bands of docs/judging.md)."""


def csv_text(study: Study) -> str:
    """One row per layer in the order they run, CRLF line ends (RFC 4180). nrmse: RMSE over the CPU's value range."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for row in study.rows:
        layer, h = row.layer, row.health
        values = (
            study.device, study.config, study.precision_class, layer.op, layer.op_name, layer.tensor, layer.name,
            layer.dtype, "x".join(map(str, layer.shape)), layer.depth, layer.own_output, h.bad, row.masked, h.snr_db,
            h.cosine, h.nrmse, h.max_abs, h.ref_max, h.new_nonfinite, h.why,
        )  # fmt: skip
        writer.writerow([_field(v) for v in values])
    return out.getvalue()


def _field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    # A spreadsheet would run a cell that begins like a formula; tensor names come from strangers.
    return f"'{text}" if text[:1] in "=+-@\t\r" and isinstance(value, str) else text


def model_explorer(study: Study) -> str:
    """Node data for Model Explorer (node_data_builder.py): graph → results by output tensor name, SNR in dB.

    A tensor that is not finite where the CPU's is has no SNR and is given 0 dB.
    """
    results: dict[str, Any] = {
        row.layer.name: {"value": row.health.snr_db if row.health.snr_db is not None else 0.0} for row in study.rows
    }
    thresholds = [{"value": value, "bgColor": colour} for value, colour in THRESHOLDS]
    data = {study.graph_name or "main": {"results": results, "thresholds": thresholds}}
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def json_text(study: Study) -> str:
    """The whole study; strict JSON, infinities and NaN as null."""
    return to_json(study, indent=1).decode()
