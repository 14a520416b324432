"""What tenants' operators decided, as of any time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.control import OwnerMapping, Rollout
from recallflow.decisions import History
from recallflow.errors import InvalidRecord
from recallflow.parsing import parse_control

MODES = st.sampled_from(["off", "shadow", "canary"])


def rollout(mode: str) -> Rollout:
    return Rollout.model_validate({"type": "graph.rollout", "tenant_id": "acme", "name": "graph", "mode": mode})


def mode_at(history: History, at_ms: int) -> str | None:
    found = history.as_of("acme", "graph.rollout", "graph", at_ms)
    return found.mode if isinstance(found, Rollout) else None


def test_a_verdict_is_taken_as_of_the_records_time() -> None:
    history = History()
    for at_ms, mode in ((300, "off"), (100, "shadow"), (200, "canary")):
        history.add(at_ms, rollout(mode))
    history.add(50, OwnerMapping(type="owner.mapping", tenant_id="acme", name="graph", workspace="w"))
    seen = [mode_at(history, at_ms) for at_ms in (99, 100, 199, 200, 299, 300)]
    assert seen == [None, "shadow", "shadow", "canary", "canary", "off"]
    assert history.as_of("other", "graph.rollout", "graph", 300) is None
    assert history.names("acme", "owner.mapping") == ["graph"]


@given(st.lists(st.tuples(st.integers(0, 20), MODES), max_size=20), st.integers(-1, 21))
def test_the_latest_decision_by_then_holds(decided: list[tuple[int, str]], at_ms: int) -> None:
    history = History()
    for append_ms, mode in decided:
        history.add(append_ms, rollout(mode))
    by_then = sorted((one for one in decided if one[0] <= at_ms), key=lambda one: one[0])
    assert mode_at(history, at_ms) == (by_then[-1][1] if by_then else None)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (b'{"type": "quota", "limit": -1}', ["tenant_id", "name", "limit"]),
        (
            b'{"type": "api_key", "tenant_id": "a", "name": "n", "salt": "s", "hash": "h", "projects": [""]}',
            ["projects.0"],
        ),
        (b'{"type": "quota", "tenant_id": "a", "name": "n", "limit": 1, "timestamp": "soon"}', ["timestamp"]),
        (b'{"type": "decree"}', ["type"]),
        (b"{}", ["type"]),
        (b"[]", [""]),
    ],
)
def test_every_wrong_field_is_named_at_once(value: bytes, fields: list[str]) -> None:
    with pytest.raises(InvalidRecord) as raised:
        parse_control(value)
    assert [problem.field for problem in raised.value.fields] == fields
    assert raised.value.code == "invalid_event"


@pytest.mark.parametrize("value", [b"{", b"", b"\xff"])
def test_what_is_no_json_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord, match="Invalid JSON") as raised:
        parse_control(value)
    assert raised.value.code == "invalid_json"


def test_a_byte_order_mark_is_passed_over_and_another_encoding_named() -> None:
    value = b'{"type": "quota", "tenant_id": "a", "name": "n", "limit": 1}'
    assert parse_control(b"\xef\xbb\xbf" + value) == parse_control(value)
    with pytest.raises(InvalidRecord, match="is UTF-16; send UTF-8"):
        parse_control(value.decode().encode("utf-16"))
