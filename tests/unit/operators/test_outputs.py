"""Answers fit any bound and name what was cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from recallflow.operators.answers.fit import LEAST_BYTES, fitted
from recallflow.outputs import Answer
from recallflow.records import Position
from recallflow.responses import Response

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
        "relevant_items": st.lists(rows, max_size=3),
        "graph_context": st.just([]),
        "token_count": st.integers(0, 9),
        "counted_by": st.just("words"),
    }
)
documents = st.fixed_dictionaries(
    {"query_id": st.text(min_size=1, max_size=128), "status": st.sampled_from(["ok", "degraded"])},
    optional={
        "versions": st.lists(rows, max_size=6),
        "context": contexts,
        "stats": free,
        "warnings": st.just([{"code": "unknown_field", "detail": "x"}]),
        "applied": st.lists(st.just("memory.events:3:12345"), max_size=200),
    },
)


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
        "query_id": "q",
        "status": "ok",
        "memories": [{"id": str(n), "content": content} for n, content in enumerate(contents)],
    }
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
    assert len(made.body) - len(cut.body) < LEAST_BYTES  # no more than what the warning, the mark and a letter take


def test_an_error_with_long_problems_keeps_its_code() -> None:
    fields = [{"field": "weights." + "x" * 400, "problem": "y" * 400} for _ in range(20)]
    error = {"code": "invalid_event", "message": "z" * 20_000, "fields": fields}
    told = from_json(fitted(answer({"query_id": "q", "status": "error", "error": error}), 16_384).body)
    assert (told["status"], told["error"]["code"], len(told["error"]["fields"])) == ("error", "invalid_event", 20)
    assert told["error"]["truncated"] is True
