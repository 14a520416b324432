"""Vectors that come later than their memories (`memory.embedding`), or in place of earlier ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recallflow.enrichment import content_hash
from recallflow.flows.embedded import Processed
from recallflow.state.segments import SMALL
from recallflow.state.verify import verify
from tests.unit.operators.harness import HASHING, make_event, run_flow
from tests.unit.operators.test_apply import codes, forget, get, outcomes, update
from tests.unit.operators.test_apply import message as told_in_session

Event = tuple[str, dict[str, Any]]
Do = Callable[..., Processed]

MODEL = "hash-384"


@pytest.fixture
def do(tmp_path: Path) -> Do:
    count = 0

    def run(*events: Event) -> Processed:
        nonlocal count
        made = [
            make_event(kind, 60_000 * at, **{"receipt": True} | fields)
            for at, (kind, fields) in enumerate(events, count)
        ]
        count += len(events)
        done = run_flow(made, tmp_path / "state")
        assert verify(tmp_path / "state").problems == []
        return done

    return run


def message(memory_id: str, content: str = "tea", **fields: Any) -> Event:
    return told_in_session(memory_id, content, session_id=memory_id, **fields)


QUESTIONS = ("zebra stripes", "violin concert", "harbour crane")


def direction(axis: int) -> list[float]:
    """The vector of a question that has no word of any memory."""
    found: list[float] = HASHING.embed([QUESTIONS[axis]])[0].tolist()
    return found


def embedding(memory_id: str, axis: int, text: str = "tea", **fields: Any) -> Event:
    given = {"memory_id": memory_id, "embedding": direction(axis), "model": MODEL, "content_hash": content_hash(text)}
    return "memory.embedding", given | fields


def along(axis: int) -> Event:
    """The memories by how near their vectors are to a direction."""
    return "recall", {"query": QUESTIONS[axis], "mode": "relevance"}


def near(memory_id: str) -> Event:
    return "graph.explore", {"nodes": [memory_id]}


def similar(response: dict[str, Any]) -> list[tuple[str, str]]:
    edges = response["subgraph"]["edges"]
    return sorted({(edge["source"], edge["target"]) for edge in edges if edge["type"] == "similar_to"})


def test_a_memory_is_found_by_the_vector_that_came_last(do: Do) -> None:
    told = [message("a"), message("b")]
    done = do(*told, embedding("a", 0), embedding("b", 1), along(0), embedding("a", 1), embedding("b", 0), along(0))
    assert outcomes(done)[2:] == ["updated"] * 4
    assert [[one["id"] for one in response["memories"]] for response in done.responses] == [["a", "b"], ["b", "a"]]


def test_it_is_no_version_of_the_memory(do: Do) -> None:
    done = do(message("a"), get("a"), embedding("a", 0), get("a"))
    before, after = ([*response["versions"]] for response in done.responses)
    assert before == after


@pytest.mark.parametrize(
    ("events", "expected", "refused"),
    [
        ([embedding("a", 0), embedding("a", 0)], ["updated", "unchanged"], []),
        (
            [embedding("a", 0, model="other"), embedding("a", 0, model="other", embedding=[1.0])],
            ["other_model"] * 2,
            [],
        ),
        ([embedding("a", 0, embedding=[1.0])], [], [("wrong_dimension", ["embedding"])]),
        ([embedding("a", 0, content_hash=content_hash("tea").upper())], ["updated"], []),
        ([embedding("a", axis, id="e") for axis in (0, 0, 1)], ["updated", "duplicate"], [("id_conflict", ["id"])]),
        ([embedding("a", 0, "coffee")], ["outdated"], []),
    ],
    ids=["again", "another model", "another size", "upper case hash", "same id", "another text"],
)
def test_vector_has_its_outcome(do: Do, events: list[Event], expected: list[str], refused: list[Any]) -> None:
    done = do(message("a"), *events)
    assert (outcomes(done)[1:], codes(done)) == (expected, refused)


def test_memories_are_similar_by_the_vectors_that_came(do: Do) -> None:
    told = [message("a", "one"), message("b", "two")]
    one = [embedding("a", 0, "one"), embedding("b", 0, "two"), near("a")]
    done = do(*told, near("a"), *one, embedding("b", 1, "two"), near("a"), forget(memory_id="b"), near("a"))
    assert [similar(response) for response in done.responses] == [[], [("a", "b")], [], []]


def test_similarity_is_known_since_the_vector_came(do: Do) -> None:
    kind, fields = near("a")
    before = (kind, fields | {"as_of": {"ingestion_time": 150_000}})
    done = do(message("a", "one"), message("b", "two"), embedding("a", 0, "one"), embedding("b", 0, "two"), before)
    assert similar(done.responses[0]) == []


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
def test_it_counts_for_memories_that_are_packed_already(do: Do, again: bool) -> None:
    told = [message(f"m{at}", f"text {at}", embedding=direction(2)) for at in range(SMALL + 1)]
    late, asked = embedding("m5", 0, "text 5"), along(0)
    responses = [do(*told, asked), do(late), do(asked)] if again else [do(*told, asked, late, asked)]
    assert responses[-1].responses[-1]["memories"][0]["id"] == "m5"


def test_vector_of_a_replaced_text_is_not_used(do: Do) -> None:
    done = do(message("a"), message("b"), embedding("a", 0), embedding("b", 1), update("a", content="zoo"), along(1))
    assert [one["id"] for one in done.responses[0]["memories"]] == ["b", "a"]
