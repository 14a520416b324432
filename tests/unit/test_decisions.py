"""Decisions of operators as of any time, and the owners of projects."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow import workspace_of
from recallflow.control import ApiKey, OwnerMapping, Rollout
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
def test_invalid_json_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord, match="Invalid JSON") as raised:
        parse_control(value)
    assert raised.value.code == "invalid_json"


def test_byte_order_mark_is_skipped_and_utf_16_refused() -> None:
    value = b'{"type": "quota", "tenant_id": "a", "name": "n", "limit": 1}'
    assert parse_control(b"\xef\xbb\xbf" + value) == parse_control(value)
    with pytest.raises(InvalidRecord, match="is UTF-16; send UTF-8"):
        parse_control(value.decode().encode("utf-16"))


def key(said_ms: int | None, *, revoked: bool = False) -> ApiKey:
    fields = {"type": "api_key", "tenant_id": "acme", "name": "k", "salt": "s", "hash": "h", "revoked": revoked}
    return ApiKey.model_validate(fields | ({} if said_ms is None else {"timestamp": said_ms}))


def said(mode: str, said_ms: int) -> Rollout:
    return rollout(mode).model_copy(update={"timestamp": said_ms})


def test_revocation_is_final_at_any_time() -> None:
    history = History()
    assert history.add_signed(100, key(50_000))
    assert history.add_signed(200, key(10, revoked=True))  # by somebody whose clock is behind
    assert not history.add_signed(300, key(60_000))
    held = [history.as_of("acme", "api_key", "k", at_ms) for at_ms in (150, 250, 350)]
    assert [isinstance(one, ApiKey) and one.revoked for one in held] == [False, True, True]
    assert not history.is_revoked("acme", "api_key", "k", 199)
    assert history.is_revoked("acme", "api_key", "k", 200)


SAID = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), MODES), max_size=12, unique_by=lambda one: (one[0], one[1])
)


@given(SAID, st.randoms(use_true_random=False))
def test_signed_decisions_count_in_any_read_order(decided: list[tuple[int, int, str]], random: Random) -> None:
    unique = list({append_ms: (append_ms, said_ms, mode) for append_ms, said_ms, mode in decided}.values())
    read = random.sample(unique, len(unique))
    history = History()
    for append_ms, said_ms, mode in read:
        history.add_signed(append_ms, said(mode, said_ms))
    for at_ms in range(-1, 22):
        by_then = sorted(one for one in unique if one[0] <= at_ms)
        newest = max(by_then, key=lambda one: one[1], default=None)
        assert mode_at(history, at_ms) == (None if newest is None else newest[2])


MAPPINGS = {"acme-platform": "org_acme", "gone": None, "both": "mapped"}
ORGANISATIONS = ["webrenew", "gone", "both"]


@pytest.mark.parametrize(
    ("project_id", "workspace"),
    [
        ("github.com/jane/side-project", "jane"),
        ("github.com/webrenew/memories", "webrenew"),
        ("github.com/acme-platform/backend", "org_acme"),
        ("github.com/both/code", "mapped"),  # a mapping wins over an organisation
        ("github.com/strangers/code", "jane"),  # no member of it
        ("github.com/gone/code", "gone"),  # a mapping that was taken back
        ("https://github.com/webrenew/memories", "webrenew"),
        ("github.com/WebRenew/memories", "webrenew"),
        ("GitHub.com/Acme-Platform/backend/tree/main", "org_acme"),
        ("git@github.com:webrenew/memories.git", "webrenew"),
        ("github.com:webrenew/memories.git", "webrenew"),
        ("ssh://git@github.com/webrenew/memories.git", "webrenew"),
        ("ssh://git@github.com:22/webrenew/memories", "webrenew"),
        ("git+ssh://git@github.com/webrenew/memories", "webrenew"),
        ("https://jane:token@github.com/webrenew/memories", "webrenew"),
        ("https://www.github.com/webrenew/memories", "webrenew"),
        ("git@github.com:webrenew", "jane"),
        ("git@gitlab.com:webrenew/memories.git", "jane"),
        ("https://github.com@evil.example/webrenew/memories", "jane"),
        ("https://evil.example/git@github.com:webrenew/memories", "jane"),
        ("git@github.com.evil.example:webrenew/memories", "jane"),
        ("github.com/webrenew", "jane"),
        ("github.com/webrenew/", "jane"),
        ("gitlab.com/webrenew/memories", "jane"),
        ("notgithub.com/webrenew/memories", "jane"),
        ("webrenew", "jane"),
        ("", "jane"),
        (None, "jane"),
    ],
)
def test_projects_go_to_their_owners_workspace(project_id: str | None, workspace: str) -> None:
    assert workspace_of(project_id, MAPPINGS, ORGANISATIONS, "jane") == workspace
