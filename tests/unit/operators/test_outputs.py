"""Outputs of queries: their size, their effects, and access records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from recallflow.credentials import ApiKeyText
from recallflow.operators.answers.answer import QUERY_IDS_MAX, RETURNED_MAX, EffectLog
from recallflow.operators.answers.fit import MIN_CUT_BYTES, fitted
from recallflow.operators.audit import OUTPUT_NUMBER
from recallflow.operators.events import Ask
from recallflow.operators.step import Clocks
from recallflow.outputs import Answer, AuditEntry, Output
from recallflow.records import Position, Principal, Refusal
from recallflow.responses import Response
from recallflow.schema import schemas
from recallflow.state import keys
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, ReadPlace, answers, explained, make_event, run_flow

AT = Position("query.events", 0, 7)
LEAST = 2_048  # below it not even an error fits

# Texts of all sizes, with what JSON writes in more bytes than one.
texts = st.builds(lambda part, times: part * times, st.text(max_size=5), st.integers(0, 2_000))
free = st.dictionaries(st.text(max_size=8), st.one_of(texts, st.integers(-(10**30), 10**30), st.none()), max_size=4)
rows = st.fixed_dictionaries(
    {"id": st.text(min_size=1, max_size=128), "content": texts},
    optional={"tags": st.lists(texts, max_size=5), "metadata": free, "score": st.floats(0, 1), "summary": st.none()},
)
contexts = st.fixed_dictionaries(
    {
        "summaries": st.dictionaries(st.text(max_size=8), texts, max_size=3),
        "relevant_items": st.lists(rows, max_size=3), "graph_context": st.just([]), "token_count": st.integers(0, 9),
        "counted_by": st.just("words"),
    }
)  # fmt: skip
documents = st.fixed_dictionaries(
    {"query_id": st.text(min_size=1, max_size=128), "status": st.sampled_from(["ok", "degraded"])},
    optional={
        "versions": st.lists(rows, max_size=6), "context": contexts, "stats": free,
        "warnings": st.just([{"code": "unknown_field", "detail": "x"}]),
        "applied": st.lists(st.just("memory.events:3:12345"), max_size=200),
    },
)  # fmt: skip


def answer(document: dict[str, Any]) -> Answer:
    known = {name: document[name] for name in ("query_id", "status", "warnings", "applied") if name in document}
    return Answer(AT, 0, b"acme/ann", to_json(document), Response.model_validate(known))


@given(documents, st.integers(LEAST, 30_000))
def test_any_answer_fits_any_bound_and_marks_cuts(document: dict[str, Any], most_bytes: int) -> None:
    made = answer(document)
    sent = fitted(made, most_bytes)
    body = from_json(sent.body)
    assert len(sent.body) <= most_bytes
    assert (sent.response.query_id, sent.response.status) == (body["query_id"], body["status"])
    assert [w.code for w in sent.response.warnings] == [w["code"] for w in body.get("warnings", [])]
    if len(made.body) <= most_bytes:
        assert sent.body == made.body
    elif body["status"] == "error":
        assert body["error"]["code"] == "too_large"
        assert body.get("applied", document.get("applied")) == document.get("applied")
    else:
        assert body["status"] == "degraded"
        assert body["warnings"][-1]["code"] == "content_cut"
        assert body.get("applied") == document.get("applied")
        pairs = [*zip(document.get("versions", []), body.get("versions", []), strict=True)]
        if "context" in document:
            before, after = document["context"], body["context"]
            pairs += zip(before["relevant_items"], after["relevant_items"], strict=True)
            assert (before["summaries"] == after["summaries"]) is not after.get("truncated", False)
        if "stats" in document:
            pairs.append((document["stats"], body["stats"]))
        for whole, shown in pairs:
            agrees(whole, shown)


def agrees(whole: dict[str, Any], shown: dict[str, Any]) -> None:
    if "truncated" in whole:
        return
    marked = shown.pop("truncated", False)
    assert shown.keys() == whole.keys()
    assert (shown == whole) is not marked
    for name, value in whole.items():
        match value:
            case str():
                assert value.startswith(shown[name])
                assert shown[name] == value or name != "id"
            case list():
                assert value[: len(shown[name])] == shown[name]
            case dict():
                assert [*value.items()][: len(shown[name])] == [*shown[name].items()]
            case _:
                assert shown[name] == value


def test_one_giant_is_cut_for_itself() -> None:
    contents = ["short", "x" * 50_000, *("medium " * 20 for _ in range(8))]
    document = {
        "query_id": "q", "status": "ok",
        "memories": [{"id": str(n), "content": content} for n, content in enumerate(contents)],
    }  # fmt: skip
    shown = from_json(fitted(answer(document), 20_000).body)["memories"]
    assert [memory["content"] for memory in shown if not memory.get("truncated")] == [contents[0], *contents[2:]]
    assert 15_000 < len(shown[1]["content"]) < 20_000


@pytest.mark.parametrize("text", ["x", "é", '"', "\u0001", "🚲"])
def test_answer_over_the_size_limit_is_cut(text: str) -> None:
    document = {"query_id": "q", "status": "ok", "versions": [{"id": "m", "content": text * 3_000}]}
    made = answer(document)
    assert fitted(made, len(made.body)) == made
    cut = fitted(made, len(made.body) - 1)
    assert len(cut.body) < len(made.body)
    (version,) = from_json(cut.body)["versions"]
    assert version["truncated"] is True
    assert (text * 3_000).startswith(version["content"])
    assert len(made.body) - len(cut.body) < MIN_CUT_BYTES  # no more than what the warning, the mark and a letter take


def test_an_error_with_long_problems_keeps_its_code() -> None:
    fields = [{"field": "weights." + "x" * 400, "problem": "y" * 400} for _ in range(20)]
    error = {"code": "invalid_event", "message": "z" * 20_000, "fields": fields}
    told = from_json(fitted(answer({"query_id": "q", "status": "error", "error": error}), 16_384).body)
    assert (told["status"], told["error"]["code"], len(told["error"]["fields"])) == ("error", "invalid_event", 20)
    assert told["error"]["truncated"] is True


NOW_MS = 1_000_000


class Logs(Harness):
    """Logs of one time: taken in, one batch each, and answered."""

    def __init__(self, path: Path) -> None:
        clocks = Clocks(timer=lambda: 0.0, now_ms=lambda: NOW_MS)
        super().__init__(path, clocks=clocks, record={"append_ms": NOW_MS})

    def answer(self, *, silent: bool = False) -> list[dict[str, Any]]:
        return [response for topic in self.lines for response in answers(self.read(topic, silent=silent))]

    def marks(self) -> int:
        return sum(key.startswith(keys.EFFECTS) for key, _ in self.records())


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    logs = Logs(tmp_path / "s")
    texts = {"a": "the red bike", "b": "green tea"}
    logs.write(MEMORIES, *(make_event("message", id=name, content=text) for name, text in texts.items()))
    return logs


def ask(**fields: Any) -> dict[str, Any]:
    return make_event("recall", 5_000, **{"query": "red bike", "k": 1} | fields)


def used(events: Sequence[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    got = [make_event("memory.get", memory_id=name) for name in names]
    return [response["usage"] for response in run_flow([*events, *got]).responses[-len(names) :]]


def counts(logs: Logs, *names: str) -> list[int]:
    logs.write(QUERIES, *(make_event("memory.get", memory_id=name) for name in names))
    return [response["usage"]["count"] for response in logs.answer()[-len(names) :]]


def said(*texts: str) -> list[dict[str, Any]]:
    return [make_event("message", n, id=f"m{n}", content=text) for n, text in enumerate(texts)]


def test_returned_memories_are_counted_with_the_latest_time() -> None:
    events = [*said("the red bike", "green tea"), ask(), ask(timestamp=9_000), ask(timestamp=7_000)]
    nothing = {"count": 0, "last_accessed_at": None, "useful": 0, "not_useful": 0}
    assert used(events, "m0", "m1") == [nothing | {"count": 3, "last_accessed_at": "1970-01-01T00:00:09Z"}, nothing]


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        *(([ask(mode=mode)], 1) for mode in ("hybrid", "relevance", "recency", "episode", "decayed", "balanced")),
        ([ask(as_of={"event_time": 6_000})], 0), ([ask(as_of={"ingestion_time": 6_000})], 0),
        ([ask(include_history=True)], 0),
        ([make_event("memory.get", memory_id="m0"), make_event("memory.history", memory_id="m0")], 0),
        ([ask(id="q"), ask(id="q"), ask(id="other"), ask(), ask()], 4), ([ask(id="q", user_id="bob"), ask(id="q")], 1),
    ],
)  # fmt: skip
def test_answers_about_now_count_once_per_query_id(asked: list[dict[str, Any]], count: int) -> None:
    assert used([*said("the red bike"), *asked], "m0")[0]["count"] == count


def test_only_the_latest_ids_are_known() -> None:
    events = said("the red bike") + [ask(id=f"q{n}") for n in range(QUERY_IDS_MAX)]
    assert used([*events, ask(id="q0")], "m0")[0]["count"] == QUERY_IDS_MAX
    assert used([*events, ask(id="new"), ask(id="q0")], "m0")[0]["count"] == QUERY_IDS_MAX + 2


def test_a_session_remembers_the_newest_it_returned(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "s")
    logs.write(MEMORIES, *(make_event("memory", n, id=f"m{n}", content=f"tea {n}") for n in range(250)))
    asked = [{"created_after": low, "created_before": low + 50} for low in range(0, 250, 50)]
    logs.write(
        QUERIES, *(make_event("recall", 500, query="tea", k=50, session_id="s", filters=filters) for filters in asked),
        make_event("recall", 500, query="tea", k=50, session_id="s", filters=asked[1]),
    )  # fmt: skip
    logs.answer()
    (returned,) = logs.table(keys.SESSION)
    seqs = [int.from_bytes(returned[at : at + 8], "little") for at in range(0, len(returned), 8)]
    assert len(seqs) == RETURNED_MAX
    assert set(seqs) == set(range(50, 250))
    assert set(seqs[-50:]) == set(range(50, 100))  # asked for again


def test_failed_effects_do_not_fail_the_answer(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_way(log: EffectLog, asked: Ask, _: object) -> None:
        log._owners.get(asked.owner).usage().record_returns([0], 5)
        raise KeyError

    logs.answer()
    with monkeypatch.context() as patch:
        patch.setattr(EffectLog, "stage", half_way)
        logs.write(QUERIES, ask(), ask())
        assert [len(response["memories"]) for response in logs.answer()] == [1, 1]
    logs.write(QUERIES, ask())
    (response,) = logs.answer()
    assert explained(response)["a"]["factors"]["usage"] == 0  # what was counted half-way went with the owner
    assert counts(logs, "a") == [1]


def test_feedback_is_counted_on_its_side_once_per_event() -> None:
    named = {"useful": True, "id": "f"}
    voices: list[dict[str, Any]] = [{"useful": True}, {"useful": True}, {"useful": False}, named, named]
    events = [make_event("memory.feedback", memory_id="m0", **fields) for fields in voices]
    nothing = {"count": 0, "last_accessed_at": None}
    assert used([*said("tea"), *events], "m0") == [nothing | {"useful": 3, "not_useful": 1}]


def test_feedback_on_an_unknown_memory_is_refused() -> None:
    feedback = make_event("memory.feedback", memory_id="m0", useful=True, receipt=True)
    forget = make_event("memory.forget", memory_id="m0")
    done = run_flow([feedback, *said("tea"), feedback, forget, feedback])
    assert [letter["error"]["code"] for letter in done.rejected] == ["not_found"] * 2
    assert [letter["error"]["fields"][0]["field"] for letter in done.rejected] == ["memory_id"] * 2
    assert [(receipt["outcome"], receipt["memory_id"]) for receipt in done.receipts] == [("updated", "m0")]


def test_a_rebuild_brings_feedback_back_and_answers_nothing(logs: Logs) -> None:
    logs.write(MEMORIES, make_event("memory.feedback", memory_id="a", useful=True))
    logs.write(QUERIES, ask())
    assert logs.answer(silent=True) == []
    logs.write(QUERIES, make_event("memory.get", memory_id="a"))
    (response,) = logs.answer()
    assert response["usage"] == {"count": 0, "last_accessed_at": None, "useful": 1, "not_useful": 0}


def test_marks_are_removed_with_the_last_snapshot_that_needs_them(logs: Logs) -> None:
    logs.write(QUERIES, ask(), ask())
    logs.answer()
    kept = []
    for _ in range(4):
        logs.mark()
        kept.append(logs.marks())
    # Written before the first snapshot, which is surely committed by the third.
    assert kept == [2, 2, 0, 0]


STEP = st.sampled_from(["tell", "ask", "again", "judge", "snapshot", "kill"])


@settings(max_examples=share(0.3))
@given(steps=st.lists(st.tuples(STEP, st.integers(0, 5)), min_size=4, max_size=16))
def test_kills_change_nothing(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """The same logs give the same usage and the same answers, killed at any moments from any surely committed snapshot
    or not."""
    killed, whole = (Logs(tmp_path_factory.mktemp("logs") / "s") for _ in range(2))
    snapshots: list[ReadPlace | None] = [None]
    for logs in (killed, whole):
        logs.write(MEMORIES, make_event("message", id="first", content="a red bike with tea"))
        logs.answer()
    told = 0
    for step, number in steps:
        event: tuple[str, dict[str, Any]] | None = None
        match step:
            case "tell":
                text = ["red bike", "green tea"][number % 2]
                event = MEMORIES, make_event("message", told, id=f"m{told}", content=text)
                told += 1
            case "ask":
                query = ["red bike", "tea", "what?"][number % 3]
                event = QUERIES, make_event("recall", told, query=query, k=2, session_id=f"s{number % 2}")
            case "again":
                event = QUERIES, make_event("recall", told, id=f"q{number}", query="bike", k=1)
            case "judge":
                event = MEMORIES, make_event("memory.feedback", memory_id=f"m{number}", useful=number % 3 > 0)
            case "snapshot":
                snapshots = [*snapshots, killed.mark()][-2:]
                whole.mark()
            case "kill":
                killed.kill(snapshots[0] if number % 2 else snapshots[-1])
                snapshots = snapshots[-1:] if number % 2 == 0 else snapshots[:1]
        if event is not None:
            killed.write(*event)
            whole.write(*event)
        killed.answer()
        whole.answer()
    final = [make_event("recall", 900, query="bike", k=10, session_id=f"s{n}") for n in range(2)]
    for logs in (killed, whole):
        logs.write(QUERIES, *final)
    one, other = (logs.answer()[-2:] for logs in (killed, whole))
    assert [explained(answer) for answer in one] == [explained(answer) for answer in other]
    assert killed.table(keys.USAGE) == whole.table(keys.USAGE)
    for logs in (killed, whole):
        logs.stop()


Event = dict[str, Any]

ANN = {"tenant_id": "acme", "user_id": "ann"}
TEXT, QUESTION = "The vault opens at nine", "When does the vault open?"
SENDER = Principal("key-1", ("p",))
FIELDS = {"type", "time", "principal", "tenant_id", "user_id", "environment", "id", "position", "status", "code"}


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "state", rules={"audited": True})


def audits(outputs: list[Output]) -> list[Event]:
    found = [one for one in outputs if isinstance(one, AuditEntry)]
    assert {one.number for one in found} <= {OUTPUT_NUMBER}
    assert not any(word in one.body.decode() for one in found for word in (TEXT, QUESTION, "vault"))
    records = [orjson.loads(one.body) for one in found]
    assert all(record.keys() == {*FIELDS, "memories"} for record in records)
    return records


def memory(number: int, **fields: Any) -> Event:
    return ANN | {"type": "memory", "id": f"m{number}", "content": TEXT, "project_id": "p"} | fields


def test_answer_is_audited_with_sender_and_count(harness: Harness) -> None:
    harness.run(MEMORIES, memory(0), memory(1), memory(2, project_id="q"))
    asked = ANN | {"type": "recall", "id": "q1", "query": QUESTION, "environment": "prod"}
    assert audits(harness.run(QUERIES, asked, principal=SENDER, append_ms=60_000)) == [
        {
            "type": "recall", "time": "1970-01-01T00:01:00Z", "principal": "key-1", "tenant_id": "acme",
            "user_id": "ann", "environment": "prod", "id": "q1", "position": "queries:0:0", "status": "ok",
            "code": None, "memories": 2,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("question", "memories"),
    [
        ({"type": "memory.get", "memory_id": "m0"}, 1), ({"type": "memory.history", "memory_id": "m0"}, 1),
        ({"type": "graph.explore"}, 2), ({"type": "graph.trace", "query": QUESTION}, 2),
        ({"type": "graph.facts", "types": ["opens"]}, 1),
        ({"type": "recall", "query": QUESTION, "k": 1, "max_tokens": 1_000}, 2), ({"type": "user.stats"}, 0),
        ({"type": "episodes.list"}, 0), ({"type": "memories.list"}, 2),
    ],
)  # fmt: skip
def test_every_kind_of_query_is_counted(harness: Harness, question: Event, memories: int) -> None:
    relations = [{"source": "vault", "type": "opens", "target": "nine"}]
    harness.run(MEMORIES, memory(0, relations=relations), memory(1, content="Something else", layer="rule"))
    (record,) = audits(harness.run(QUERIES, ANN | question))
    assert (record["memories"], record["principal"]) == (memories, None)


def test_unanswerable_queries_are_recorded(harness: Harness) -> None:
    (record,) = audits(harness.run(QUERIES, ANN | {"type": "memory.get", "memory_id": "none"}))
    assert (record["status"], record["code"], record["memories"]) == ("error", "not_found", None)
    (record,) = audits(harness.run(QUERIES, ANN | {"type": "graph.status"}, principal=SENDER))
    assert (record["principal"], record["code"]) == ("key-1", "forbidden")


UNKNOWN = Refusal("authorise", "unauthenticated", "", "no credentials")


def test_records_refused_for_their_sender_are_recorded(harness: Harness) -> None:
    refused: Any = {"refusal": UNKNOWN}
    (asked,) = audits(harness.run(QUERIES, ANN | {"type": "recall", "query": QUESTION}, **refused))
    (told,) = audits(harness.run(MEMORIES, memory(0, environment="staging"), **refused))
    assert [asked["code"], told["code"]] == ["unauthenticated"] * 2
    assert [asked["position"], told["position"]] == ["queries:0:0", "memories:0:0"]
    assert (told["type"], told["user_id"], told["environment"], told["id"]) == ("memory", "ann", "staging", "m0")
    (wide,) = audits(harness.run(MEMORIES, memory(1, project_id="q"), principal=SENDER))
    assert (wide["code"], wide["principal"]) == ("forbidden", "key-1")


def test_invalid_event_is_audited_with_its_known_fields(harness: Harness) -> None:
    wrong = {"type": "recall", "tenant_id": TEXT * 20, "user_id": {"name": TEXT}, "id": 7, "query": QUESTION}
    (record,) = audits(harness.run(QUERIES, wrong))
    assert (record["type"], record["tenant_id"], record["user_id"]) == ("recall", None, None)
    assert (record["id"], record["code"]) == ("queries:0:0", "invalid_event")
    assert audits(harness.run(MEMORIES, memory(0, content=None))) == []  # nobody asked, and nobody was kept out


@pytest.mark.parametrize("field", ["tenant_id", "user_id", "environment", "id"])
def test_a_credential_in_an_ids_place_is_not_recorded(harness: Harness, field: str) -> None:
    key = ApiKeyText.new().text()
    (record,) = audits(harness.run(QUERIES, ANN | {"type": "recall", "query": QUESTION, field: key}, refusal=UNKNOWN))
    assert key not in str(record)


def test_an_erasure_is_recorded(harness: Harness) -> None:
    harness.run(MEMORIES, memory(0))
    (record,) = audits(harness.run(MEMORIES, ANN | {"type": "user.erase", "timestamp": 9}))
    assert (record["type"], record["status"], record["environment"]) == ("user.erase", "ok", None)
    (record,) = audits(harness.run(MEMORIES, ANN | {"type": "user.erase"}, principal=SENDER))
    assert (record["status"], record["code"]) == ("error", "forbidden")


def test_schema_has_all_fields_of_the_record() -> None:
    assert schemas()["audit"]["properties"].keys() == {*FIELDS, "memories"}
