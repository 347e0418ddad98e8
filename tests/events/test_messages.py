"""Topics and payloads: what ids can and cannot do to them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import InvalidInput
from farm.events import broker_of
from farm.events.messages import MAX_LEVEL, MAX_PAYLOAD, base, level, payload
from farm.inventory import Inventory, Mqtt
from farm.plan import PlannedDevice


@given(st.text())
def test_an_id_is_always_one_plain_level(name: str) -> None:
    made = level(name)
    assert made
    assert len(made) <= MAX_LEVEL
    assert not set(made) & set("/+#$\0 \n")


@pytest.mark.parametrize("pair", [("a/b", "a_b"), ("a+b", "a#b"), ("x" * 200, "x" * 201), ("", "_")])
def test_ids_that_look_alike_stay_apart(pair: tuple[str, str]) -> None:
    assert level(pair[0]) != level(pair[1])


def test_a_plain_id_stays_as_it_is() -> None:
    assert level("pixel-9_pro~2.gpu") == "pixel-9_pro~2.gpu"
    assert base("lab/farm/", "host") == "lab/farm/host"


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(-(2**53), 2**53), st.lists(st.text())), max_size=40))
def test_a_payload_is_json_of_bounded_size(body: dict[str, object]) -> None:
    data = payload(body)
    assert len(data) <= MAX_PAYLOAD
    json.loads(data)


def test_a_file_name_that_is_no_text_can_be_sent() -> None:
    json.loads(payload({"folder": b"/tmp/\xff".decode("utf-8", "surrogateescape")}))


def inventory(**mqtt: object) -> Inventory:
    return Inventory(
        devices=(PlannedDevice(id="local", transport="local"),),
        mqtt=Mqtt(host="127.0.0.1", **mqtt),  # type: ignore[arg-type]
    )


def test_no_broker_is_used_unless_one_is_named() -> None:
    assert broker_of(Inventory(devices=())) is None


def test_credentials_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_USER", "me")
    monkeypatch.setenv("LAB_PASSWORD", "geheim")
    broker = broker_of(inventory(username_env="LAB_USER", password_env="LAB_PASSWORD"))
    assert broker is not None
    assert (broker.username, broker.password) == ("me", "geheim")
    assert "geheim" not in repr(broker)


def test_a_missing_variable_and_a_missing_ca_are_both_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_PASSWORD", raising=False)
    with pytest.raises(InvalidInput) as refused:
        broker_of(inventory(password_env="LAB_PASSWORD", ca_file="no/such.pem"))
    assert "no LAB_PASSWORD" in str(refused.value)
    assert "no/such.pem" in str(refused.value)
