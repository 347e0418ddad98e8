"""A study for the terminal: the named op and why, then the worst layers; the matrix over devices × configs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from farm.layers.health import Health
from farm.layers.study import Named, Row, Study

WORST = 12


def first_sentence(study: Study) -> str:
    """What the matrix and the table's head say: the named op, or that there is none, or why nothing is known."""
    if study.error is not None:
        return f"not studied: {study.error}"
    if study.first is None:
        extra = "; the sweep is PERTURBED, own outputs are good" if study.perturbed else ""
        return f"no bad layer{extra}"
    layer, confirmed = study.first.layer, study.first.confirmed
    label = confirmed.label if confirmed is not None else "unconfirmed"
    codes = ", ".join(r.code for r in study.first.reasons)
    more = f", and {len(study.named) - 1} more" if len(study.named) > 1 else ""
    return f"op {layer.op} {layer.op_name} ({label}; {codes}){more}"


def render(study: Study, *, worst: int = WORST) -> str:
    """One study as text."""
    lines = [f"{study.model} on {study.device} in {study.config}: {first_sentence(study)}"]
    if study.error is not None:
        return lines[0] + "\n"
    facts = [
        f"precision {study.precision_class}",
        f"delegation {study.delegation}",
        study.gpu,
        f"inputs {study.input_set}",
    ]
    lines.append("  " + " · ".join(f for f in facts if f))
    lines.append(
        f"  {len(study.rows)} layers in {study.chunks} chunks; {study.runs} device runs (at most {study.most_runs})"
        + (f"; {study.failed_chunks} chunks did not compile and were split" if study.failed_chunks else "")
    )
    skipped = ", ".join(f"{n} {why}" for why, n in sorted(study.skipped.items()))
    if skipped:
        lines.append(f"  not watched: {skipped}")
    for name, why in list(study.unseen.items())[:3]:
        lines.append(f"  could not be exposed: {_clean(name)}: {why}")
    if study.perturbed:
        lines.append(
            f"  PERTURBED: exposing layers changed {', '.join(map(_clean, study.perturbed))}; inner figures are hints"
        )
    for number, named in enumerate(study.named[:5]):
        lines += _named(number, named)
    lines.append("")
    lines += _table(study, worst)
    return "\n".join(lines) + "\n"


def _named(number: int, named: Named) -> list[str]:
    layer = named.layer
    lines = [f"  {number + 1}. op {layer.op} {layer.op_name}, tensor {_clean(layer.name)}: {named.health.why}"]
    if named.confirmed is not None:
        c = named.confirmed
        lines.append(f"     alone on exact inputs: {_seen(c.single)}; at the end of its prefix: {_seen(c.prefix)}"
                     + (f" ({c.note})" if c.note else ""))  # fmt: skip
    for reason in named.reasons:
        lines.append(f"     {reason.code}: {reason.sentence}")
        lines.append(f"     try: {reason.try_}")
    return lines


def _seen(health: Health | None) -> str:
    if health is None:
        return "did not run"
    return health.why if health.bad else f"good ({_db(health)} dB)"


def _table(study: Study, worst: int) -> list[str]:
    from tabulate import tabulate

    rows = worst_rows(study)[:worst]
    bad = sum(r.health.bad for r in study.rows)
    title = (
        f"  {bad} of {len(study.rows)} layers are beyond the limit; worst first:"
        if bad
        else "  No layer is beyond the limit; worst first:"
    )
    body = [
        [
            row.layer.op, row.layer.op_name, _clean(row.layer.name)[-44:], _db(row.health),
            _number(row.health.cosine, 6), _number(row.health.nrmse, 3), _number(row.health.max_abs, 3), _word(row),
        ]
        for row in rows
    ]  # fmt: skip
    head = ["op", "kind", "tensor", "SNR dB", "cosine", "nRMSE", "max abs", ""]
    text = tabulate(body, head, tablefmt="plain", disable_numparse=True)
    return [title, *("  " + line for line in text.splitlines())]


def worst_rows(study: Study) -> list[Row]:
    """Rows, bad ones first, then by SNR, then in the order they run."""
    return sorted(
        study.rows,
        key=lambda r: (not r.health.bad, r.health.snr_db if r.health.snr_db is not None else -999.0, r.layer.op),
    )


def _word(row: Row) -> str:
    if row.masked:
        return "masked"
    return "BAD" if row.health.bad else ""


def _db(health: Health) -> str:
    return "-" if health.snr_db is None else f"{health.snr_db:.1f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def matrix(studies: Sequence[Study]) -> str:
    """First bad op and cause over devices × configs."""
    from tabulate import tabulate

    configs = list(dict.fromkeys(s.config for s in studies))
    devices = list(dict.fromkeys(s.device for s in studies))
    found = {(s.device, s.config): first_sentence(s) for s in studies}
    body = [[d, *(found.get((d, c), "") for c in configs)] for d in devices]
    return tabulate(body, ["device", *configs], tablefmt="plain", disable_numparse=True) + "\n"
