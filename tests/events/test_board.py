"""What `farm watch` makes of messages: gaps, stale states, strangers' bytes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from farm.events import Board, LinkState, Received


def message(kind: str, *, retained: bool = False, **body: Any) -> Received:
    data = json.dumps({"type": kind, "source": "lab", "session": "s", **body}).encode()
    return Received(topic="farm/lab/x", data=data, retained=retained)


def test_a_gap_in_the_numbers_is_told() -> None:
    board = Board()
    assert board.take(message("run_stage", seq=1, stage="references")) == ["lab: references"]
    assert board.take(message("run_stage", seq=2, stage="judging")) == ["lab: judging"]
    assert "3 events were missed" in board.take(message("run_stage", seq=6, stage="end"))[0]
    assert len(board.take(message("run_stage", seq=2, stage="again"))) == 1


def test_retained_events_of_earlier_runs_are_not_news() -> None:
    assert Board().take(message("run_finished", seq=9, run="old", retained=True)) == []


def test_states_of_a_farm_that_is_gone_are_unknown() -> None:
    board = Board()
    board.take(message("status", state="online", retained=True))
    board.take(message("state", device="pixel", state="busy", cell="c", retained=True))
    assert board.rows() == [("lab", "pixel", "busy", "c")]
    assert board.take(message("status", state="offline")) == ["lab: offline"]
    assert board.rows()[0][2] == "unknown (its farm is offline)"


def test_the_link_is_told() -> None:
    board = Board()
    assert board.take(LinkState(up=True)) == ["connected"]
    assert board.take(LinkState(up=False, error="gone")) == ["the broker is away: gone"]


KEYS = st.sampled_from(
    ["type", "source", "session", "seq", "device", "devices", "verdicts", "state", "latency_ms", "run", "cell"]
)
KINDS = st.sampled_from(["status", "state", "run_started", "run_finished", "cell_finished", "run_stage", "night"])
VALUES = st.none() | st.integers() | st.text() | st.lists(st.integers()) | st.dictionaries(st.text(), st.integers())


@given(st.binary(max_size=300) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_break_it(data: bytes) -> None:
    board = Board()
    board.take(Received(topic="t", data=data, retained=False))
    board.rows()


@given(KINDS, st.dictionaries(KEYS, VALUES))
def test_no_event_breaks_it(kind: str, body: dict[str, Any]) -> None:
    board = Board()
    data = json.dumps({**body, "type": kind}).encode()
    board.take(Received(topic="t", data=data, retained=False))
    board.rows()
