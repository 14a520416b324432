"""Passages of long texts: how a text is cut, found and shown; owners and outputs kept in memory and on disk."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.locomo import shared
from recallflow.flows.settings import Settings
from recallflow.limits import READ_CHARACTERS
from recallflow.operators import outbox
from recallflow.operators.prepare import PASSAGES_MAX, SHARED_WORDS, WORDS, own_texts, passages
from recallflow.outputs import DeadLetter, ReceiptOutput
from recallflow.records import Position, Record
from recallflow.state import directory, keys, segments
from recallflow.state.directory import StateDirectory
from recallflow.state.hot_owner import HotOwners
from recallflow.state.rows import Vectors
from recallflow.state.segment import Segment
from recallflow.state.trace_search import Pieces
from recallflow.state.verify import verify
from tests.event_log import hash_of
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, Harness, ReadPlace, answers, make_event, receipts, run_flow

FACT = "The spare key of the cabin hangs behind the blue lantern."
QUESTION = "Where is the spare key of the cabin?"


def long_answer(at_word: int = 900, words: int = 1_300) -> str:
    """A long answer about gardens, with one fact about something else."""
    topics = ["tomatoes", "roses", "compost", "mulch", "pruning", "seedlings", "herbs", "hedges", "lawns", "bulbs"]
    sentences = [
        f"In week {number} water the {topics[number % 10]} early and keep the {topics[number * 7 % 10]} dry."
        for number in range(words // 12)
    ]
    sentences.insert(at_word // 12, FACT)
    return " ".join(sentences)


def told(text: str) -> list[dict[str, Any]]:
    events = [
        make_event("message", at, id=f"m{at}", session_id="s", role="user", content=f"Please tell me about {what}.")
        for at, what in enumerate(["tomatoes", "roses", "my lawn", "the weather", "a holiday"])
    ]
    return [*events, make_event("message", 10, id="long", session_id="s", role="assistant", content=text)]


def asked(**fields: Any) -> dict[str, Any]:
    return make_event("recall", 20, query=QUESTION, k=10) | fields


def excerpt_of(memory: dict[str, Any]) -> str:
    text: str = memory["content"][memory["excerpt"]["start"] : memory["excerpt"]["end"]]
    return text


@pytest.mark.parametrize(
    "embedder",
    ["hash", pytest.param("minilm", marks=pytest.mark.models), pytest.param("static", marks=pytest.mark.models)],
)
def test_fact_far_into_a_long_answer_is_found_and_shown(embedder: str) -> None:
    folder = {"minilm": "all-MiniLM-L6-v2", "static": "static-minilm-256"}
    model: dict[str, Any] = {} if embedder == "hash" else {"model_path": shared("models") / folder[embedder]}
    events = [*told(long_answer()), asked(mode="relevance")]
    (response,) = run_flow(events, embedder=embedder, **model).responses
    found = {memory["id"]: memory for memory in response["memories"]}
    long = found.pop("long")
    assert FACT in excerpt_of(long)
    assert len(excerpt_of(long).split()) <= 110
    assert {memory["excerpt"] for memory in found.values()} == {None}


def test_words_decide_the_passage_and_among_equals_the_vector() -> None:
    text = long_answer().replace("week 50 ", "week 50 by the spare cabin ")  # two of the question's three words
    for query, holds in ((QUESTION, FACT), ("What is by the cabin in spare weeks?", "week 50")):
        (response,) = run_flow([*told(text), asked(query=query)]).responses
        (found,) = (memory for memory in response["memories"] if memory["id"] == "long")
        assert holds in excerpt_of(found)


def test_the_passage_is_of_the_version_that_is_asked_about() -> None:
    events = [
        *told("A note of few words."), make_event("memory.update", 12, memory_id="long", content=long_answer(100)),
        make_event("memory.update", 13, memory_id="long", content=long_answer(700)), asked(k=10),
        asked(k=10, as_of={"ingestion_time": 12}), asked(k=10, as_of={"ingestion_time": 11}),
    ]  # fmt: skip
    now, before, first = (
        next(memory for memory in response["memories"] if memory["id"] == "long")
        for response in run_flow(events).responses
    )
    assert FACT in excerpt_of(now)
    assert FACT in excerpt_of(before)
    assert before["excerpt"] != now["excerpt"]
    assert first["excerpt"] is None


def test_context_takes_the_passage_when_the_text_is_too_long() -> None:
    def items(max_tokens: int) -> dict[str, dict[str, Any]]:
        events = [*told(long_answer()), asked(max_tokens=max_tokens)]
        (response,) = run_flow(events).responses
        return {item["id"]: item for item in response["context"]["relevant_items"]}

    part, whole = items(400)["long"], items(20_000)["long"]
    assert FACT in part["content"]
    assert len(part["content"]) < 1_600  # of 400 tokens
    assert whole["content"] == long_answer()
    assert whole["excerpt"] is None
    assert whole["content"][part["excerpt"]["start"] : part["excerpt"]["end"]] == part["content"]


def stored(state_dir: Path) -> list[Vectors]:
    with StateDirectory.existing(state_dir) as directory:
        (partition,) = directory.partitions()
        found = [(keys.split(key)[1], value) for key, value in partition.scan(keys.OWNERS)]
    return [Vectors.decode(value) for table, value in found if table in (keys.VECTORS, keys.PAST_VECTORS)]


def test_each_passage_has_a_vector_and_short_texts_one(tmp_path: Path) -> None:
    giant = (long_answer(900, 9_000) + " ")[:READ_CHARACTERS] + FACT
    run_flow([*told(long_answer()), make_event("memory", 11, id="giant", content=giant)], tmp_path)
    rows = sorted(len(vectors.matrix) for vectors in stored(tmp_path))
    assert rows == [1, 1, 1, 1, 1, len(passages(long_answer())), PASSAGES_MAX]
    assert verify(tmp_path).problems == []


def test_a_vector_that_comes_with_a_long_text_stands_alone(tmp_path: Path) -> None:
    given = [1.0] + [0.0] * 383
    event = make_event("memory", 0, id="given", content=long_answer(), embedding=given)
    (response,) = run_flow([event, asked()], tmp_path).responses
    assert [vectors.matrix.tolist() for vectors in stored(tmp_path)] == [[given]]
    assert FACT in excerpt_of(response["memories"][0])


def test_state_and_answers_do_not_depend_on_batches(tmp_path: Path) -> None:
    events = told(long_answer())
    events += [
        make_event("message", 11 + at, id=f"n{at}", session_id="s", role="assistant", content=long_answer(at * 9, 400))
        for at in range(140)
    ]
    events.append(make_event("memory.update", 200, memory_id="n3", content=long_answer(240, 500)))
    once, pieces = tmp_path / "once", tmp_path / "pieces"
    query = asked(timestamp=300, k=20, mode="relevance")
    (whole,) = run_flow([*events, query], once).responses
    for start in range(0, len(events), 37):
        run_flow(events[start : start + 37], pieces)
    for _ in range(2):  # from entries, and from the segment that the first one made
        (response,) = run_flow([query], pieces).responses
        assert response["memories"] == whole["memories"]
    assert hash_of(once) == hash_of(pieces)
    assert verify(pieces).problems == []


SENTENCES = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([". ", "! ", "?\n", " ", "\n\n", ", "])), max_size=60
).map(lambda found: "".join(" ".join(["word"] * words) + end for words, end in found))
CHINESE = st.lists(st.tuples(st.integers(1, 50), st.sampled_from("。！？，"))).map(
    lambda found: "".join("猫" * size + mark for size, mark in found)
)
TEXTS = st.one_of(SENTENCES, CHINESE, st.text(max_size=2_000), st.text(alphabet="ab .\n国。", max_size=3_000))


@given(text=TEXTS)
@example("a" * 6_000)
@example("猫" * 2_000)
@example("word " * 3_000)
@example(" \n" * 6_000)
def test_passages_hold_all_of_a_text_in_order(text: str) -> None:
    found = passages(text)
    assert found == passages(text)
    assert 1 <= len(found) <= PASSAGES_MAX
    if len(found) == 1:
        assert found == [(0, 0, len(text))]
        return
    for before, after in pairwise(found):
        assert before.start < after.start <= after.end
        assert before.end <= after.end
        assert not text[before.end : after.start].strip()
    assert not text[: found[0].start].strip()
    assert not text[found[-1].end :].strip()
    for passage in found:
        shown = text[passage.start : passage.end]
        assert shown
        assert shown == shown.strip()
    assert "".join(own_texts(text, found)) == text
    assert len(own_texts(text, found)) == len(found)


@given(text=SENTENCES)
def test_passage_has_about_eighty_words_plus_overlap(text: str) -> None:
    found = passages(text)
    if WORDS < len(text.split()) <= PASSAGES_MAX * WORDS:
        assert len(found) == -(-len(text.split()) // WORDS)
    for passage, own in zip(found, own_texts(text, found), strict=True):
        # A sentence is not cut, so that one may be half a sentence longer.
        assert len(own.split()) <= WORDS + 40
        assert len(text[passage.start : passage.end].split()) <= len(own.split()) + SHARED_WORDS


def test_chinese_sentences_end_at_their_marks_and_characters_count() -> None:
    text = "我妹妹对花生过敏。" * 40
    found = passages(text)
    assert len(found) == 3  # 360 characters: 160 of them are 80 words
    for passage in found:
        assert text[passage.start : passage.end].startswith("我妹妹")
        assert text[passage.end - 1] == "。"


NOUNS = ("ferry", "walnut", "lantern", "Porto", "violin")
USERS = ("ann", "bo")
STAY, LEAVE = 1 << 30, 1  # bytes of owners in memory: all stay, or all leave after each batch
EVENT = st.tuples(st.sampled_from(["say"] * 4 + ["update", "forget", "ask"]), st.sampled_from(USERS), st.integers(0, 9))
BATCH = st.lists(EVENT, min_size=1, max_size=12)
# Of one process after the other; each one ends well, and packs what it has of the newest memories.
LIVES = st.lists(
    st.tuples(st.sampled_from([STAY, LEAVE]), st.lists(BATCH, min_size=1, max_size=4)), min_size=1, max_size=4
)
Batch = list[tuple[str, str, int]]


@pytest.fixture(scope="module")
def budgets() -> Iterator[list[int]]:
    """The last one is the budget of the next process. A short log makes segments of both sizes."""
    found = [STAY]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SMALL", 4)
        patch.setattr(segments, "LARGE", 8)
        patch.setattr(directory, "HotOwners", lambda _: HotOwners(found[-1]))
        yield found


class Log:
    def __init__(self, *users: str) -> None:
        self._said: dict[str, list[str]] = {user: [] for user in users or USERS}
        self._number = 0

    def batch(self, drawn: Batch) -> list[dict[str, Any]]:
        return [self._event(*one) for one in drawn]

    def _event(self, action: str, user: str, at: int) -> dict[str, Any]:
        self._number += 1
        said, text = self._said[user], f"{NOUNS[self._number % 5]} {NOUNS[at % 5]} {self._number}"
        of = said[-1 - at % len(said)] if said else "nothing"
        told: dict[str, Any] = {"type": "recall", "query": text, "k": 20}
        if action == "say":
            said.append(f"m{self._number}")
            told = {"type": "message", "id": said[-1], "content": text, "session_id": f"s{at % 2}", "role": "user"}
        elif action == "update":
            told = {"type": "memory.update", "memory_id": of, "content": f"now {text}"}
        elif action == "forget":
            told = {"type": "memory.forget", "memory_id": of}
        return told | {"tenant_id": "acme", "user_id": user, "timestamp": 60_000 * (self._number - at)}


def questions() -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = [{"type": "recall", "query": f"Who took the {word}?", "k": 99} for word in NOUNS]
    asked += [{"type": "user.stats"}, {"type": "episodes.list"}]
    return [one | {"tenant_id": "acme", "user_id": user, "timestamp": 6_000_000} for user in USERS for one in asked]


def comparable(outputs: list[Any]) -> list[dict[str, Any]]:
    found = answers(outputs)
    for one in found:
        one.get("routing_info", {}).pop("cache_hits", None)
    return found


@settings(max_examples=share(0.2))
@given(lives=LIVES)
def test_evicted_owner_answers_like_a_cached_one(budgets: list[int], lives: list[tuple[int, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        budgets.append(STAY)
        one, log = Harness(Path(folder) / "one", one_log=True), Log()
        batches = [[log.batch(drawn) for drawn in life] for _, life in lives]
        expected = [comparable(one.run(MEMORIES, *batch)) for life in batches for batch in life]
        expected.append(comparable(one.run(MEMORIES, *questions())))

        budgets.append(lives[0][0])
        many = Harness(Path(folder) / "many", one_log=True)
        said = []
        for (budget, _), life in zip(lives, batches, strict=True):
            budgets.append(budget)
            many.restart()
            said += [comparable(many.run(MEMORIES, *batch)) for batch in life]
        many.restart()
        said.append(comparable(many.run(MEMORIES, *questions())))
        assert said == expected
        assert many.hash() == one.hash()
        many.stop()
        one.stop()
        assert verify(Path(folder) / "many").problems == []


def tails(harness: Harness) -> Iterator[int]:
    for key, value in harness.directory.partition(0).scan(keys.OWNERS):
        if keys.split(key)[1] == keys.SEGMENT:
            found = Segment.decode(value, "hash-384", 384)
            assert found is not None
            if found.end != keys.sequence(key):
                yield found.size


def test_packing_at_the_end_is_bounded(budgets: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_PACKED_AT_CLOSE", 12)
    budgets.append(STAY)
    harness = Harness(tmp_path / "s", one_log=True)
    for user in range(9):
        said = [("say", f"u{user}", 0)] * 3
        # Each third of them in a worker of its own, which is a thread.
        with ThreadPoolExecutor(1) as worker:
            worker.submit(harness.run, MEMORIES, *Log(f"u{user}").batch(said)).result()
    harness.restart()
    assert [*tails(harness)] == [3] * 4


EACH = 4  # events between two snapshots: receipts, and one that is refused by the state


def came(engine: Harness) -> list[tuple[int, str]]:
    found = []
    for output in engine.read(MEMORIES, EACH):
        match output:
            case ReceiptOutput():
                found.append((output.position.offset, receipts([output])[0]["outcome"]))
            case DeadLetter():
                found.append((output.position.offset, output.error.code))
    return found


def event(at: int) -> dict[str, Any]:
    if at % EACH == 0:
        return make_event("memory.update", at, memory_id="nobody's", content="Tea")
    return make_event("memory", at, id=f"m{at}", content=f"Bike {at}", receipt=True)


def kept(engine: Harness) -> int:
    return sum(key.startswith(keys.OUTBOX) for key, _ in engine.records())


@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize("whole", [3, 4, 7])
def test_outputs_come_again_from_any_recent_snapshot(tmp_path: Path, whole: int, back: int) -> None:
    engine = Harness(tmp_path / "s")
    engine.write(MEMORIES, *(event(at) for at in range(whole * EACH)))
    first = []
    snapshots: list[ReadPlace | None] = [None]
    for _ in range(whole):
        first += came(engine)
        snapshots.append(engine.mark())
    assert len(first) == whole * EACH
    engine.kill(snapshots[whole - back])  # within the last snapshot, or right behind it
    again = [output for _ in range(back) for output in came(engine)]
    assert again == first[-back * EACH :]


def test_key_equal_to_the_records_is_not_stored(tmp_path: Path) -> None:
    record = Record(Position(MEMORIES, 0, 7), b"{}", 0, key=b"acme/ann@example.com")
    outputs = [
        ReceiptOutput(record.position, 0, b"acme/ann@example.com", b"{}"),
        ReceiptOutput(record.position, 1, b"another's", b"{}"),
    ]
    fingerprint = Settings(partitions=1).fingerprint(Settings().load_embedder())
    with StateDirectory.open(tmp_path / "s", fingerprint) as directory:
        partition = directory.partition(0)
        stored = outbox.encode(partition, record, outputs)
        partition.stage(stored)
        assert outbox.read(partition, record) == outputs
    (value,) = stored.values()
    assert not Pieces([b"ann@example.com"]).find_in(value or b"")
