"""Decisions of operators as of any time, owners of projects, and announcements of signing keys."""

import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow import workspace_of
from recallflow.connectors.jwks import open_jwks
from recallflow.control import ALL_TENANTS, ApiKey, ControlHistory, OwnerMapping, Rollout, TokenKey
from recallflow.credentials import fingerprint
from recallflow.errors import InvalidRecord, SinkError, SourceError
from recallflow.fields import EPOCH_MS_MAX
from recallflow.flows.admission import TokenKeys, key_source
from recallflow.flows.settings import AuthSettings
from recallflow.parsing import parse_control
from recallflow.process import background_thread
from tests.jwks_server import SECRET, JwksServer, document, es256, oct_key, rs256

MODES = st.sampled_from(["off", "shadow", "canary"])


def rollout(mode: str) -> Rollout:
    return Rollout.model_validate({"type": "graph.rollout", "tenant_id": "acme", "name": "graph", "mode": mode})


def mode_at(history: ControlHistory, at_ms: int) -> str | None:
    found = history.as_of("acme", "graph.rollout", "graph", at_ms)
    return found.mode if isinstance(found, Rollout) else None


def test_a_verdict_is_taken_as_of_the_records_time() -> None:
    history = ControlHistory()
    for at_ms, mode in ((300, "off"), (100, "shadow"), (200, "canary")):
        history.add(at_ms, rollout(mode))
    history.add(50, OwnerMapping(type="owner.mapping", tenant_id="acme", name="graph", workspace="w"))
    seen = [mode_at(history, at_ms) for at_ms in (99, 100, 199, 200, 299, 300)]
    assert seen == [None, "shadow", "shadow", "canary", "canary", "off"]
    assert history.as_of("other", "graph.rollout", "graph", 300) is None
    assert history.names("acme", "owner.mapping") == ["graph"]


@given(st.lists(st.tuples(st.integers(0, 20), MODES), max_size=20), st.integers(-1, 21))
def test_the_latest_decision_by_then_holds(decided: list[tuple[int, str]], at_ms: int) -> None:
    history = ControlHistory()
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
    assert ([problem.field for problem in raised.value.fields], raised.value.code) == (fields, "invalid_event")


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
    history = ControlHistory()
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
    history = ControlHistory()
    for append_ms, said_ms, mode in read:
        history.add_signed(append_ms, said(mode, said_ms))
    for at_ms in range(-1, 22):
        by_then = sorted(one for one in unique if one[0] <= at_ms)
        newest = max(by_then, key=lambda one: one[1], default=None)
        assert mode_at(history, at_ms) == (None if newest is None else newest[2])


MAPPINGS = {"acme-platform": "org_acme", "gone": None, "both": "mapped"}
ORGANISATIONS = ["webrenew", "gone", "both"]


SPELLINGS = """
github.com https://github.com https://jane:token@github.com https://www.github.com GitHub.com ssh://git@github.com
ssh://git@github.com:22 git+ssh://git@github.com
"""
STRANGERS = """
git@github.com:webrenew git@gitlab.com:webrenew/memories.git https://github.com@evil.example/webrenew/memories
https://evil.example/git@github.com:webrenew/memories git@github.com.evil.example:webrenew/memories
github.com/webrenew github.com/webrenew/ gitlab.com/webrenew/memories notgithub.com/webrenew/memories webrenew
"""


@pytest.mark.parametrize(
    ("project_id", "workspace"),
    [
        ("github.com/jane/side-project", "jane"),
        ("github.com/acme-platform/backend", "org_acme"),
        ("github.com/both/code", "mapped"),  # a mapping wins over an organisation
        ("github.com/strangers/code", "jane"),  # no member of it
        ("github.com/gone/code", "gone"),  # a mapping that was taken back
        ("github.com/WebRenew/memories", "webrenew"),
        ("GitHub.com/Acme-Platform/backend/tree/main", "org_acme"),
        ("git@github.com:webrenew/memories.git", "webrenew"),
        ("github.com:webrenew/memories.git", "webrenew"),
        *((f"{spelling}/webrenew/memories", "webrenew") for spelling in SPELLINGS.split()),
        *((project_id, "jane") for project_id in (*STRANGERS.split(), "", None)),
    ],
)
def test_projects_go_to_their_owners_workspace(project_id: str | None, workspace: str) -> None:
    assert workspace_of(project_id, MAPPINGS, ORGANISATIONS, "jane") == workspace


GIVE_UP_S = 60.0
OWN = "a secret of thirty-two bytes, or more"


class Log:
    def __init__(self) -> None:
        self.history = ControlHistory()
        self.events: list[TokenKey] = []
        self.fails = False
        self.called = Event()

    def __call__(self, events: Sequence[TokenKey]) -> None:
        if self.fails:
            raise SinkError("the brokers are away")
        for event in events:
            self.events.append(event)
            self.history.add(len(self.events), event)
        self.called.set()

    def news(self) -> list[tuple[str, bool]]:
        found = [(event.name, event.revoked) for event in self.events]
        self.events = []
        return found


@pytest.fixture
def log() -> Log:
    return Log()


def watch(log: Log, jwks: object = None, secret: str | None = None) -> tuple[TokenKeys, dict[str, bytes]]:
    auth = AuthSettings(jwks=None if jwks is None else str(jwks), secret=secret)
    secrets: dict[str, bytes] = {}
    return TokenKeys(auth, key_source(auth), log.history, secrets, log), secrets


def begin(log: Log, jwks: object = None, secret: str | None = None) -> TokenKeys:
    keys, _ = watch(log, jwks, secret)
    keys.load()
    return keys


def write(tmp_path: Path, *keys: object) -> Path:
    path = tmp_path / "jwks.json"
    path.write_bytes(document(*keys))
    return path


def test_keys_of_a_file_are_announced_and_revoked(log: Log, tmp_path: Path) -> None:
    first, second, secret = rs256("one"), es256("two"), oct_key("three")
    path = write(tmp_path, first, secret)
    keys, secrets = watch(log, path)
    keys.load()
    announced = {event.name: event for event in log.events}
    assert (log.news(), announced["one"].tenant_id) == ([("one", False), ("three", False)], ALL_TENANTS)
    assert (announced["one"].algorithm, announced["one"].jwk) == ("RS256", {x: first[x] for x in ("e", "kty", "n")})
    assert (announced["three"].algorithm, announced["three"].jwk) == ("HS256", None)
    assert list(secrets) == [announced["three"].fingerprint]
    keys.refresh()
    assert log.news() == []
    write(tmp_path, second, secret)
    keys.refresh()
    assert log.news() == [("two", False), ("one", True)]
    keys.refresh()
    assert log.news() == []


def test_unreadable_file_stops_a_start(log: Log, tmp_path: Path) -> None:
    path = write(tmp_path, oct_key("one"))
    begin(log, path)
    path.unlink()
    with pytest.raises(SourceError, match="cannot read"):
        begin(log, path, OWN)


def test_a_restart_announces_nothing_that_is_known(log: Log, tmp_path: Path) -> None:
    path = write(tmp_path, rs256("one"), oct_key("two"))
    begin(log, path, OWN)
    assert log.news() == [("one", False), ("two", False), (fingerprint(OWN.encode()), False)]
    keys, secrets = watch(log, path, OWN)
    keys.load()
    assert (log.news(), len(secrets)) == ([], 2)


def test_no_secret_is_in_an_announcement(log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    private = rs256("one")
    watch(log, write(tmp_path, private, oct_key("two")), OWN)[0].load()
    told = caplog.text + "".join(event.model_dump_json() for event in log.events)
    for secret in (SECRET, OWN, private["d"], private["p"]):
        assert secret not in told


def test_a_key_that_comes_back_stays_revoked(log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two = rs256("one"), rs256("two")
    path = write(tmp_path, one, two)
    keys = begin(log, path)
    write(tmp_path, two)
    keys.refresh()
    assert log.news() == [("one", False), ("two", False), ("one", True)]
    write(tmp_path, one, two)
    for _ in range(3):
        keys.refresh()
    assert log.news() == []
    assert [text for text in caplog.messages if "was revoked" in text] == [
        "auth.jwks: one was revoked, and a revoked key stays invalid: give it another kid"
    ]


def test_another_key_of_the_same_kid_takes_its_place(log: Log, tmp_path: Path) -> None:
    path = write(tmp_path, rs256("one"))
    keys = begin(log, path)
    before = log.events[-1].fingerprint
    write(tmp_path, es256("one"))
    keys.refresh()
    assert [(event.name, event.algorithm) for event in log.events] == [("one", "RS256"), ("one", "ES256")]
    assert log.events[-1].fingerprint != before


def test_key_missing_twice_at_an_address_is_revoked(log: Log, jwks_server: JwksServer) -> None:
    one, two = rs256("one"), es256("two")
    jwks_server.body = document(one, two)
    keys = begin(log, jwks_server.url)
    assert log.news() == [("one", False), ("two", False)]
    jwks_server.body = document(two)
    keys.refresh()
    jwks_server.body = document(one, two)  # it was but one of several servers that was behind
    keys.refresh()
    jwks_server.body = document(two)
    keys.refresh()
    assert log.news() == []
    keys.refresh()
    assert log.news() == [("one", True)]


@pytest.mark.parametrize(("status", "body"), [(500, b""), (200, b"<html>"), (200, document()), (302, b"")])
def test_unreadable_answer_changes_no_key(log: Log, jwks_server: JwksServer, status: int, body: bytes) -> None:
    jwks_server.body = document(rs256("one"))
    keys = begin(log, jwks_server.url)
    jwks_server.status, jwks_server.body = status, body
    for _ in range(3):
        with pytest.raises(SourceError):
            keys.refresh()
    assert log.news() == [("one", False)]
    begin(log, jwks_server.url)  # a start goes on with what is known


def test_a_start_without_any_key_is_refused(log: Log, jwks_server: JwksServer, monkeypatch: pytest.MonkeyPatch) -> None:
    jwks_server.status = 500
    with pytest.raises(SourceError, match="with status 500; no signing key is known yet, so no token can be"):
        begin(log, jwks_server.url)
    keys, secrets = watch(log, jwks_server.url, OWN)  # the one that is set is one
    with monkeypatch.context() as patched:
        patched.setattr(log.history, "add", lambda *_: None)  # what was announced takes a moment to come back
        keys.load()
    assert (log.news(), list(secrets)) == ([(fingerprint(OWN.encode()), False)], [fingerprint(OWN.encode())])


def test_missing_jwks_setting_revokes_no_key(log: Log, tmp_path: Path) -> None:
    watch(log, write(tmp_path, rs256("one")), OWN)[0].load()
    log.news()
    begin(log, None, OWN + " another")
    old, new = fingerprint(OWN.encode()), fingerprint(f"{OWN} another".encode())
    assert log.news() == [(new, False), (old, True)]
    assert not log.history.is_revoked(ALL_TENANTS, "token_key", "one", EPOCH_MS_MAX)


def test_unreadable_key_is_not_revoked(log: Log, tmp_path: Path) -> None:
    one, two = rs256("one"), rs256("two")
    keys = begin(log, write(tmp_path, one, two))
    write(tmp_path, one | {"n": "a typing error"}, two)
    keys.refresh()
    assert log.news() == [("one", False), ("two", False)]


def test_failed_announcement_is_repeated(log: Log, tmp_path: Path) -> None:
    keys, _ = watch(log, write(tmp_path, rs256("one")))
    log.fails = True
    with pytest.raises(SinkError):
        keys.load()
    log.fails = False
    keys.refresh()
    assert log.news() == [("one", False)]


def test_a_thread_looks_on_and_says_why_it_ends(
    log: Log, jwks_server: JwksServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recallflow.flows.admission.RETRY_S", 0.01)
    jwks_server.body = document(rs256("one"))
    auth = AuthSettings(jwks=jwks_server.url, jwks_refresh_s=1)
    keys = TokenKeys(auth, open_jwks(jwks_server.url), log.history, {}, log)
    keys._refresh_s = 0.01
    keys.load()
    jwks_server.body, jwks_server.failures = document(rs256("one"), es256("two")), 3
    log.called.clear()
    with background_thread(keys.run, "keys", keys.stopping):
        assert log.called.wait(GIVE_UP_S)
    assert ("two", False) in log.news()
    assert len(jwks_server.asked) >= 5
    keys.check(None)


def test_a_defect_stops_the_flow(log: Log, jwks_server: JwksServer) -> None:
    jwks_server.body = document(rs256("one"))
    failed = Event()

    def fail(_: Sequence[TokenKey]) -> None:
        failed.set()
        raise ZeroDivisionError

    keys = TokenKeys(
        AuthSettings(jwks=jwks_server.url, jwks_refresh_s=1), open_jwks(jwks_server.url), log.history, {}, fail
    )
    keys._refresh_s = 0.01
    with background_thread(keys.run, "keys", keys.stopping):
        assert failed.wait(GIVE_UP_S)
    with pytest.raises(SourceError, match="the refresh of signing keys has stopped"):
        keys.check(None)
