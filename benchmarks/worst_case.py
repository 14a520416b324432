"""The costliest events and questions there are, each at an owner of 100,000 memories, beside the bound for all.

    python -m benchmarks.worst_case [--memories 100000] [--search 300] [--quick] [--json FILE]

Held is the longest that one call of the state step, or of the steps before it, keeps its worker, in processor time, so
that what else the machine does is not counted; an event that is applied in steps counts by its longest. One line is the
worst that hypothesis' targeted search finds, and one the first touch of the owner.
"""

import gc
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from hypothesis import HealthCheck, Phase, given, seed, settings, target
from hypothesis import strategies as st

from benchmarks import worst_models
from benchmarks.command_line import quick_arguments, write_json
from recallflow import limits
from recallflow.connectors.embedders import load_embedder
from recallflow.flows.settings import Settings
from recallflow.operators.answers.models import Models, TimedModel
from recallflow.operators.events import Batch, decode
from recallflow.operators.prepare import prepare
from recallflow.operators.rules import EnrichmentTasks, Rules
from recallflow.operators.step import StateStep
from recallflow.outputs import Answer, DeadLetter, Output
from recallflow.parsing import QUERY_TYPES
from recallflow.records import Position, Record
from recallflow.state.directory import StateDirectory

BOUND_MS = 250
MINUTE_MS = 60_000
BEGIN_MS = 1_700_000_000_000
BATCH = 500
SESSION = 50  # messages
LONG_MS = BEGIN_MS - 86_400_000
AUTHORS = 2_000
SAME = "the same tea as ever, and nothing else"
WORDS = [f"word{n}" for n in range(5_000)]
MEMORIES, QUERIES = "memories", "queries"
CACHE_BYTES = 4 * 1024**3
LONG_EPISODES = {"type": "episodes.list", "session_id": "long"}

Event = dict[str, Any]


class Line(NamedTuple):
    """What one input cost: the longest a call held the worker, all its calls together, and what memory grew by."""

    name: str
    held_ms: float
    all_ms: float
    calls: int
    grew_mb: float
    refused: bool

    @property
    def is_over(self) -> bool:
        return self.held_ms > BOUND_MS


class Worker:
    """The steps of the dataflow up to the state's outputs, one event at a time and one owner, without Bytewax."""

    def __init__(self, folder: Path) -> None:
        chosen, self._embedder = Settings(partitions=1, cache_bytes=CACHE_BYTES), load_embedder("hash")
        self._directory = StateDirectory.open(folder, chosen.fingerprint(self._embedder), chosen.cache_bytes)
        self._rules = chosen.rules(self._embedder, QUERIES, input_ends=False, decisions=worst_models.decisions())
        self._models = Models(TimedModel(worst_models.Fluent(), timeout_s=600.0))
        self._open(self._rules)
        self._offset = 0

    def _open(self, rules: Rules) -> None:
        self._step = StateStep.opener(self._directory, self._embedder, rules, models=self._models)(0)

    def enrich(self) -> None:
        """From here on, events ask for all that the enrichment flow does."""
        wanted = EnrichmentTasks(relationships=True, facts=True, categories=True, summaries=True)
        self._open(replace(self._rules, enrichment=wanted))

    def apply(self, *events: Event) -> tuple[list[float], list[Output]]:
        """Milliseconds of each call, and what came out."""
        calls, outputs = list[float](), list[Output]()

        def timed(work: Callable[[], Any]) -> Any:
            started = time.thread_time()
            result = work()
            calls.append((time.thread_time() - started) * 1000)
            return result

        records = [self._record(event) for event in events]
        items = timed(lambda: prepare(self._embedder, [decode(record) for record in records]))
        outputs += timed(lambda: self._step.take([Batch(0, items)]))
        completions, asked = self._models.runtime.completions, sum(event["type"] in QUERY_TYPES for event in events)
        while True:
            while self._step.due_ms() is not None:
                outputs += timed(self._step.advance)
            if sum(isinstance(output, Answer) for output in outputs) >= asked:
                return calls, outputs
            completions.wake.wait()
            completions.wake.clear()
            outputs += timed(lambda: self._step.take(completions.pop_all()))

    def _record(self, event: Event) -> Record:
        self._offset += 1
        topic = QUERIES if event["type"] in QUERY_TYPES else MEMORIES
        line = orjson.dumps({"tenant_id": "bench", "user_id": "user"} | event)
        return Record(Position(topic, 0, self._offset), line, BEGIN_MS + self._offset)

    def measure(self, name: str, *events: Event) -> Line:
        """One line of the table."""
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        calls, outputs = self.apply(*events)
        grew = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        return Line(name, max(calls), sum(calls), len(calls), grew, any(isinstance(o, DeadLetter) for o in outputs))

    def close(self) -> None:
        self._models.runtime.close()
        self._directory.close()


@contextmanager
def owner_of(memories: int) -> Iterator[Worker]:
    """A worker with an owner of so many short messages, in sessions, by many authors."""
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Path(folder) / "state")
        for start in range(0, memories, BATCH):
            worker.apply(*(_message(number) for number in range(start, min(start + BATCH, memories))))
        for events in chain(shapes(memories), worst_models.shapes()):
            worker.apply(*events)
        yield worker
        worker.close()


def _message(number: int, **fields: Any) -> Event:
    text = " ".join(WORDS[number * step % len(WORDS)] for step in (1, 7, 13, 29, 31, 37, 41, 43))
    author = {"id": f"m{number}", "name": f"Author{number % AUTHORS}", "timestamp": BEGIN_MS + number * MINUTE_MS}
    about = {"metadata": {"channel": f"c{number % 100}", "stars": number % 5}}
    return {"type": "message", "session_id": f"s{number // SESSION}", "content": text} | author | about | fields


# ---------------------------------------------------------------------- inputs


def writes(memories: int) -> Iterator[tuple[str, list[Event]]]:
    """What memory events can cost most."""
    large = limits.RECORD_BYTES - 1_000

    def memory(**fields: Any) -> list[Event]:
        return [{"type": "memory", "content": "tea"} | fields]

    yield "message, short", [_message(memories)]
    yield "message of one word of 1 MB", [_message(memories + 1, content="x" * large)]
    yield "message of 130,000 different words", [_message(memories + 2, content=_distinct_words(large))]
    yield "message of names", [_message(memories + 3, content="and Ann Bo " * (large // 11))]
    yield "message of function words", [_message(memories + 4, content="of the " * (large // 7))]
    yield "message of mentions, tags and URNs", [_message(memories + 5, content="@a #b urn:c:d e/f " * (large // 18))]
    yield "message of parts", [_message(memories + 6, content=[{"type": "text", "text": "tea"}] * limits.PARTS_MAX)]
    yield "120,000 tags", memory(tags=[f"t{n}" for n in range(110_000)])
    yield "500,000 wrong tags", memory(tags=[1] * 500_000)
    full = _rich(999)
    yield "tags, topics at their limits", memory(tags=full["tags"], topics=full["topics"])
    yield "entities at their limit", memory(entities=full["entities"])
    yield "relations at their limit", memory(relations=full["relations"])
    yield "metadata of 9,900 values", memory(metadata={f"k{n}": n for n in range(9_900)})
    edges = [
        {"source": f"m{n}", "target": f"entity:E{n}", "type": "about", "evidence": f"m{n + 1}"}
        for n in range(limits.EDGES_MAX)
    ]
    yield "edges at their limit", [{"type": "graph.edges", "edges": edges}]
    for name, prefix in (("unknown entities", "nobody "), ("memories", "m")):
        entities = [f"{prefix}{n}" for n in range(limits.EDGES_MAX)]
        yield f"an archive of {name}", [{"type": "graph.archive", "entities": entities}]
    yield "an update", [_update("m5", content="tea", tags=["hot"])]
    yield "an update of a memory of 1,000 versions", [_update("versions", content=f"tea {memories}")]
    yield "a near duplicate of 2,000", [_message(memories + 10, content=SAME)]
    yield "feedback", [{"type": "memory.feedback", "memory_id": "m6", "useful": True}]
    yield "end of an episode", [{"type": "episode.end", "session_id": "s3"}]


def shapes(memories: int) -> Iterator[list[Event]]:
    """What makes an owner awkward: a memory of very many versions, very many that say the same, one with an edge to
    every other, some that bring as much into the graph as they may, an entity that everybody names, and two large
    episodes that one message would join."""
    many = memories // 5
    yield [{"type": "memory", "id": "teller", "content": "tea", "entities": [{"name": "everybody", "type": "all"}]}]
    for number, begin_ms in enumerate((LONG_MS, LONG_MS + many + 45 * MINUTE_MS)):
        for first in range(0, many, BATCH):
            yield [
                _message(0, id=f"long{number}-{n}", session_id="long", timestamp=begin_ms + n, content="@everybody")
                for n in range(first, min(first + BATCH, many))
            ]
    yield [{"type": "memory", "id": "hub", "content": "the hub"}]
    for first in range(0, memories, limits.EDGES_MAX):
        ends = [f"m{n}" if n % 2 else f"entity:E{n}" for n in range(first, first + limits.EDGES_MAX)]
        yield [{"type": "graph.edges", "edges": [{"source": "hub", "target": end, "type": "about"} for end in ends]}]
    for first in range(0, limits.EVIDENCE_MAX, limits.EDGES_MAX):
        says = {"source": "hub", "type": "says", "evidence": "hub"}
        edges = [says | {"target": f"entity:E{n}"} for n in range(first, first + limits.EDGES_MAX)]
        yield [{"type": "graph.edges", "edges": edges}]
    for number in range(20):
        yield [_rich(number)]
    yield [{"type": "memory", "id": "versions", "content": "tea"}]
    for first in range(0, 1_000, BATCH):
        yield [_update("versions", content=f"tea {number}") for number in range(first, first + BATCH)]
    for first in range(0, 2_000, BATCH):
        yield [
            _message(memories + number, id=f"same{number}", content=SAME, session_id=None)
            for number in range(first, first + BATCH)
        ]


def _update(name: str, **fields: Any) -> Event:
    return {"type": "memory.update", "memory_id": name} | fields


def _forget(**fields: Any) -> list[Event]:
    return [{"type": "memory.forget"} | fields]


def _rich(number: int) -> Event:
    """Return a memory with as many labels, entities and relations as allowed."""
    labels = [f"{number} {n}" for n in range(limits.LABELS_MAX)]
    entities = [{"name": f"{number} {n}", "urn": f"urn:{number}:{n}", "type": "t"} for n in range(limits.ENTITIES_MAX)]
    relations = [{"source": f"A{number} {n}", "type": "knows", "target": f"B{n}"} for n in range(limits.RELATIONS_MAX)]
    described = {"type": "memory", "id": f"rich{number}", "content": "tea", "category": "rich"}
    return described | {"tags": labels, "topics": labels, "entities": entities, "relations": relations}


def questions(memories: int) -> Iterator[tuple[str, list[Event]]]:
    """What questions can cost most."""
    now = BEGIN_MS + memories * MINUTE_MS
    recall = partial(worst_models.recall_at, now)
    expand = partial(recall, strategy="hybrid_graph", traversal_depth=3)
    yield "a question", recall()
    yield "of dates, 8,000 characters", recall("June 2001 July 2002 " * 400)
    yield "of names, 8,000 characters", recall(worst_models.AUTHORS_QUERY)
    yield "of different words, 8,000 characters", recall(_distinct_words(8_000))
    yield "of words that are known, 8,000 characters", recall(" ".join(WORDS[:1_100]))
    yield "of 1 MB", recall("word1 " * 170_000)
    yield "the first about 50 texts of 1 MB of new words", recall(**worst_models.NEW_WORDS)
    for mode in ("balanced", "entity_focused", "relevance", "recency", "decayed", "episode", "auto"):
        yield f"mode {mode}", recall(mode=mode)
    yield "whole episodes at their limit", recall(mode="episode", k=50, whole_episodes=True, max_tokens=4_000)
    yield "filters at their limits", recall(filters={
        "tags": [f"t{n}" for n in range(limits.FILTER_VALUES_MAX)],
        "names": [f"Author{n}" for n in range(limits.FILTER_VALUES_MAX)],
        "session_ids": [f"s{n}" for n in range(limits.FILTER_VALUES_MAX)],
    })  # fmt: skip
    yield "a filter by metadata", recall(filters={"metadata": {"channel": "c7", "stars": [1, 2]}})
    yield "filters that nest, at their limits", recall(filters=worst_models.NESTED_FILTERS)
    by_metadata = {"not": {"metadata": {"channel": [f"c{n}" for n in range(100)], "stars": [0, 1, 2, 3, 4]}}}
    nested = {"any": [by_metadata] * (limits.FILTER_CONDITIONS_MAX // 2 - 1)}
    yield "filters by metadata that nest, at their limits", recall(filters=nested)
    urns = [f"urn:e:{n}" for n in range(limits.URNS_MAX)]
    yield "entity_urns at their limit", recall(entity_urns=urns, mode="entity_focused")
    yield "graph expansion", expand()
    yield "graph expansion around a hub", expand("@everybody", k=50)
    then = {"ingestion_time": BEGIN_MS + memories}
    yield "graph expansion around a hub, of then", expand("@everybody", as_of=then)
    yield "a context", recall(max_tokens=1_000_000, k=50)
    yield "as of an event time", recall(as_of={"event_time": now - memories * MINUTE_MS // 2})
    yield "as of an ingestion time", recall(as_of={"ingestion_time": BEGIN_MS + memories // 2})
    yield "with history", recall(include_history=True)
    yield "episodes.list", [{"type": "episodes.list", "limit": 1_000}]
    yield "user.stats", [{"type": "user.stats"}]
    yield "graph.status", [{"type": "graph.status"}]
    yield "graph.trace", [{"type": "graph.trace", "query": "word1 word7", "traversal_depth": 3}]
    yield "graph.explore", [{"type": "graph.explore", "hops": 3}]
    yield "memory.history of 1,000 versions", [{"type": "memory.history", "memory_id": "versions"}]


def enriched(memories: int) -> Iterator[tuple[str, list[Event]]]:
    """What asks the enrichment flow for most."""
    large = limits.RECORD_BYTES - 1_000
    later_ms = LONG_MS + 10 * memories * MINUTE_MS
    yield "a message", [_message(memories + 20)]
    yield "a message as 2,000 others", [_message(memories + 21, content=SAME + ".")]
    yield "a message of names", [_message(memories + 22, content="and Ann Bo " * (large // 11))]
    yield "a message of 130,000 words", [_message(memories + 23, content=_distinct_words(large))]
    yield "a memory at its limits", [_rich(1_000)]
    yield "a memory of a large category", [{"type": "memory", "content": "tea", "category": "work"}]
    yield "a message behind a large episode", [_message(0, id="behind", session_id="long", timestamp=later_ms)]
    yield "the end of a large episode", [{"type": "episode.end", "session_id": "long"}]


def large_changes(memories: int) -> Iterator[tuple[str, list[Event]]]:
    """What changes very many records, up to all that the owner has."""
    between_ms = LONG_MS + memories // 5 + 22 * MINUTE_MS
    no_links = dict.fromkeys(("tags", "topics", "entities", "relations"))
    joining = _message(0, id="between", session_id="long", timestamp=between_ms)
    yield "a message that makes two large episodes one", [joining]
    yield "an update of a memory of very many edges", [_update("hub", content="the hub still", tags=["hot"])]
    yield "an update that takes all of a memory's links", [_update("rich1", **no_links)]
    yield "an archive of an entity of very many links", [{"type": "graph.archive", "entities": ["everybody", "hub"]}]
    yield "a forget of who tells of it", _forget(memory_id="teller")
    yield "a forget of a memory of very many edges", _forget(memory_id="hub")
    yield "a forget of a memory of very many versions", _forget(memory_id="versions")
    yield "a forget of memories of very many links", _forget(filter={"category": "rich"})
    yield "a forget of one session", _forget(filter={"session_id": "s1"})
    yield "a forget of all", _forget(filter={"older_than": BEGIN_MS + 10 * memories * MINUTE_MS})


def response(outputs: list[Output]) -> dict[str, Any]:
    """The answer among what came out."""
    (answer,) = (output for output in outputs if isinstance(output, Answer))
    found: dict[str, Any] = orjson.loads(answer.body)
    return found


def _distinct_words(characters: int) -> str:
    made = " ".join(f"{n:x}z" for n in range(characters // 6))
    return made[:characters]


# ---------------------------------------------------------------------- search


TEXTS = st.builds(
    lambda parts, times: (" ".join(parts) + " ") * times,
    st.lists(
        st.sampled_from(["May", "in", "2003", "June", "3rd", "Author7", "word1", "Ann", "'s", "#t", "@b", "of", "?",
                         "urn:a:b", "x" * 40, "I", "\\n", "2023-05-08", "İ", "word4999"]), min_size=1, max_size=8
    ),
    st.integers(1, 2_000),
)  # fmt: skip
EVENTS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("recall"), "query": TEXTS.map(lambda text: text[:20_000])},
        optional={
            "mode": st.sampled_from(["hybrid", "balanced", "entity_focused", "episode", "decayed", "relevance"]),
            "strategy": st.just("hybrid_graph"),
            "traversal_depth": st.integers(1, 3),
            "k": st.integers(1, 50),
            "max_tokens": st.integers(1, 1_000_000),
            "rewrite": st.just(True),
            "check_sufficiency": st.just(True),
            "filters": st.fixed_dictionaries({}, optional={"names": st.lists(st.just("Author7"), max_size=200)}),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.just("memory"), "content": TEXTS.map(lambda text: text[:500_000] + "x")},
        optional={
            "tags": st.lists(st.text("ab", min_size=1, max_size=9), max_size=limits.LABELS_MAX),
            "entities": st.lists(
                st.fixed_dictionaries({"name": st.text("ABC", min_size=1, max_size=9)}), max_size=limits.ENTITIES_MAX
            ),
        },
    ),
)


def search(worker: Worker, examples: int) -> Line:
    """The worst of so many events and questions, each led by what the ones before it cost."""
    worst = Line("", 0.0, 0.0, 0, 0.0, refused=False)

    @seed(1)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.target),
        suppress_health_check=list(HealthCheck),
    )
    @given(EVENTS)
    def try_one(event: Event) -> None:
        nonlocal worst
        line = worker.measure(f"worst found: {event['type']} of {len(orjson.dumps(event)):,} bytes", event)
        target(line.held_ms)
        worst = max(worst, line, key=lambda one: one.held_ms)

    try_one()
    return worst


# ---------------------------------------------------------------------- table


def table(memories: int, examples: int) -> list[Line]:
    """Every line, on one owner."""
    with owner_of(memories) as worker:
        lines = [worker.measure("first touch", *next(iter(questions(memories)))[1])]
        now_ms, (_, outputs) = BEGIN_MS + memories * MINUTE_MS, worker.apply(LONG_EPISODES)
        episode_id = max(response(outputs)["episodes"], key=lambda episode: episode["messages"])["id"]
        model_writes = worst_models.writes(_message(0)["content"], episode_id)
        for inputs in (questions(memories), worst_models.questions(now_ms), writes(memories), model_writes):
            lines += [worker.measure(name, *events) for name, events in inputs]
        lines.append(search(worker, examples))
        worker.enrich()
        worker.apply(*next(iter(questions(memories)))[1])  # the owner is read again
        lines += [worker.measure(f"{name}, enriched", *events) for name, events in enriched(memories)]
        for inputs in (worst_models.large_changes(), large_changes(memories)):
            lines += [worker.measure(name, *events) for name, events in inputs]
        return lines


def main() -> None:
    parser = quick_arguments(__doc__, "5,000 memories, 30 examples")
    parser.add_argument("--memories", type=int, default=100_000, metavar="N", help="of the owner (100,000)")
    parser.add_argument("--search", type=int, default=300, metavar="N", help="examples of the search (300)")
    chosen = parser.parse_args()
    memories, examples = (5_000, 30) if chosen.quick else (chosen.memories, chosen.search)
    lines = table(memories, examples)
    print(f"{'at ' + format(memories, ',') + ' memories':<52} {'held ms':>8} {'all ms':>9} {'calls':>6} {'MB':>7}")
    for line in lines:
        marks = ("  refused" if line.refused else "") + (f"  OVER {BOUND_MS} ms" if line.is_over else "")
        print(f"{line.name:<52} {line.held_ms:8.1f} {line.all_ms:9.1f} {line.calls:6} {line.grew_mb:7.1f}{marks}")
    write_json([line._asdict() for line in lines], chosen.json)


if __name__ == "__main__":
    main()
