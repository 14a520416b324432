"""Verdicts do not depend on when a log is read, and stay with waiting queries."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.control import SETTLED_MS
from recallflow.credentials import ApiKeyText, Headers, read_key
from recallflow.operators.large import decode_record, encode_record
from recallflow.outputs import Answer, Output
from recallflow.records import Position, Principal, Record, Refusal
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers, letters, receipts
from tests.unit.senders import (
    EVENT,
    NOW_MS,
    OTHER_RSA_KEY,
    QUERY,
    SECRET,
    Senders,
    api_key,
    bearer,
    rsa_jwk,
    signing_keys,
    token,
    token_key,
    with_key,
)

SECOND_MS = 1_000


class Engine(Harness):
    """A state partition behind authorisation. Records of the log keep headers and times across kills."""

    def __init__(self, path: Path, senders: Senders) -> None:
        self.senders = senders
        self.sent: dict[tuple[str, int], tuple[Headers, int]] = {}
        super().__init__(path, decode=lambda record: self.senders.authorise(record))

    def send(self, topic: str, event: Mapping[str, Any], headers: Headers, at_ms: int = NOW_MS) -> None:
        self.sent[topic, len(self.lines[topic])] = headers, at_ms
        self.write(topic, event)

    def _made(self, topic: str, number: int, line: bytes, fields: Mapping[str, Any]) -> Record:
        headers, at_ms = self.sent[topic, number]
        return super()._made(topic, number, line, fields)._replace(headers=headers, append_ms=at_ms)


@pytest.fixture
def senders() -> Senders:
    made = Senders()
    made.decide(*map(token_key, signing_keys()))
    return made


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[Senders], Engine]:
    numbers = itertools.count()
    return lambda senders: Engine(tmp_path / f"state{next(numbers)}", senders)


def message(number: int, **fields: Any) -> dict[str, Any]:
    return EVENT | {"id": f"m{number}", "content": f"Tea number {number}.", "receipt": True} | fields


def came(outputs: list[Output]) -> list[tuple[int, str]]:
    """By offset, a receipt's outcome or an error's code."""
    found = [(letter.position.offset, letter.error.code) for letter in letters(outputs)]
    said = [(int(one["position"].rpartition(":")[2]), one["outcome"]) for one in receipts(outputs)]
    return sorted([*found, *said])


def test_log_of_expired_credentials_replays_to_the_same_verdicts(make_engine: Callable[[Senders], Engine]) -> None:
    """Decisions come while the first engine runs, up to a second late. The second one knows all of them from the start,
    in another order, as a rebuild years later does; no clock is asked."""
    running = Senders("auto")
    first = make_engine(running)
    rsa, ec, secret = signing_keys()
    key_text = ApiKeyText.new()
    key, made = with_key(key_text), api_key(key_text)
    other = OTHER_RSA_KEY
    decided = [
        (2 * SECOND_MS, token_key(rsa)),
        (2 * SECOND_MS, token_key(secret)),
        (3 * SECOND_MS, made),
        (12 * SECOND_MS, token_key(rsa, revoked=True)),
        (12 * SECOND_MS, token_key(read_key(rsa_jwk(other, kid="r2")))),
        (15 * SECOND_MS, made.model_copy(update={"revoked": True})),
        (16 * SECOND_MS, made),  # sent again
        (16 * SECOND_MS, token_key(rsa)),
        (17 * SECOND_MS, token_key(ec)),
    ]
    expires_s = NOW_MS // SECOND_MS + 10
    senders = itertools.cycle(
        [
            (), key, bearer(token(exp=expires_s, end_users=["ann"])),
            bearer(token(SECRET, "HS256", "o", nbf=expires_s)), bearer(token(other, kid="r2")), bearer(token(other)),
            (*key, ("x-end-user-id", b"bob")),
        ]
    )  # fmt: skip
    ahead, known = iter([*decided, (10**9, decided[0][1])]), []
    next_one = next(ahead)
    outputs = []
    for number in range(140):
        at_ms = NOW_MS + number * 150
        while NOW_MS + next_one[0] + SETTLED_MS <= at_ms:  # the engine hears of it at the last moment
            running.decide(next_one[1], at_ms=NOW_MS + next_one[0])
            known.append(next_one)
            next_one = next(ahead)
        first.send(MEMORIES, message(number), next(senders), at_ms)
        outputs += first.read(MEMORIES)
    assert running.authoriser.late == {}
    verdicts = came(outputs)
    codes = {code for _, code in verdicts}
    assert codes == {"created", "unauthenticated", "forbidden"}
    assert len(known) == len(decided)

    later = Senders("auto")
    for at_ms, event in reversed(decided):
        later.decide(event, at_ms=NOW_MS + at_ms)
    second = make_engine(later)
    second.lines, second.sent = first.lines, first.sent
    again: list[Output] = []
    while batch := second.read(MEMORIES, 17):
        again += batch
    assert came(again) == verdicts
    assert second.hash() == first.hash()
    # What each verdict rests on was there at some time, and not at another.
    by_sender = {number: [code for at, code in verdicts if at % 7 == number] for number in range(7)}
    assert {"created", "unauthenticated"} <= set(by_sender[0] + by_sender[1])
    for number in (0, 1, 2, 3, 4):
        assert len(set(by_sender[number])) == 2, number


@pytest.mark.parametrize(
    "verdict",
    [
        {"principal": Principal("service", ("x", "y"))},
        {"principal": Principal("service")},
        {"refusal": Refusal("authorise", "forbidden", "user_id", "not yours")},
        {},
    ],
)
def test_a_verdict_is_stored_with_its_record(verdict: dict[str, Any]) -> None:
    record = Record(Position("memory.events", 0, 1), b"{}", 1, headers=(("a", None),), **verdict)
    assert decode_record(orjson.loads(orjson.dumps(encode_record(record)))) == record


@pytest.mark.parametrize("refused", ["unauthenticated", "forbidden", "invalid_event"])
def test_refused_question_learns_nothing_at_its_own_address(
    make_engine: Callable[[Senders], Engine], senders: Senders, refused: str
) -> None:
    engine = make_engine(senders)
    engine.send(MEMORIES, message(0), bearer(token()))
    engine.read(MEMORIES)
    engine.send(
        QUERIES,
        QUERY | {"reply_to": {"topic": "elsewhere"}} | ({"query": 7} if refused == "invalid_event" else {}),
        bearer(token(end_users=[])) if refused == "forbidden" else (),
    )
    outputs = engine.read(QUERIES)
    (answer,) = (output for output in outputs if isinstance(output, Answer))
    assert answer.reply_to is None
    (said,) = answers(outputs)
    assert said["error"]["code"] == refused
    assert {name for name, value in said.items() if value} == {"query_id", "status", "error"}
    (letter,) = letters(outputs)
    assert letter.record.headers == ()
