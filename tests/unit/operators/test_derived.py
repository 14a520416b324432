"""Events derived from memories: they hold as long as their sources are unchanged."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.events import content_hash
from recallflow.flows.embedded import Processed
from recallflow.limits import MADE_MAX
from recallflow.operators import large
from recallflow.operators.episodes import episode_id
from recallflow.operators.rules import EnrichmentTasks
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.rows import CategorySummaryRow, Entry, EpisodeSummaryRow, MemoryHead, MemoryRow
from recallflow.state.verify import verify
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, FlatEmbedder, Harness, make_event, run_flow
from tests.unit.operators.test_apply import (
    codes,
    forget,
    found,
    get,
    history,
    memory,
    message,
    outcomes,
    recall,
    update,
)

Event = tuple[str, dict[str, Any]]

LISBON, PORTO = "I live in Lisbon", "I moved to Porto"
TOLD = message("told", LISBON)


def do(*events: Event) -> Processed:
    """Run events, given as (type, fields), a minute apart; each asks for a receipt. The state must be consistent."""
    made = [make_event(kind, 60_000 * at, **{"receipt": True} | fields) for at, (kind, fields) in enumerate(events)]
    with TemporaryDirectory() as folder:
        done = run_flow(made, Path(folder) / "state")
        assert verify(Path(folder) / "state").problems == []
    return done


def of(memory_id: str, content: str | None = None, *others: str) -> dict[str, Any]:
    derived: dict[str, Any] = {"memory_id": memory_id, "model": "some", "prompt_version": "1", "source": "memories:0:0"}
    if content is not None:
        derived["content_hash"] = content_hash(content)
    if others:
        derived["others"] = [{"memory_id": other} for other in others]
    return {"derived_from": derived}


def fact(memory_id: str = "fact", content: str = "Ann lives in Lisbon", **fields: Any) -> Event:
    return memory(memory_id, content, **{**of("told", LISBON), **fields})


def edge(source: str, target: str, kind: str = "supersedes", **fields: Any) -> Event:
    return "graph.edges", {"edges": [{"source": source, "target": target, "type": kind}], **fields}


DERIVED: list[Event] = [
    fact(),
    update("told", category="home", **of("told", LISBON)),
    ("category.summary", {"category": "home", "summary": "Lisbon", **of("told", LISBON)}),
    edge("told", "other", **of("told", LISBON)),
    ("memory.embedding", {"memory_id": "told", "embedding": [1.0] + [0.0] * 383, "model": "hash-384",
                          "content_hash": content_hash(LISBON)}),
]  # fmt: skip
TYPES = [kind for kind, _ in DERIVED]


@pytest.mark.parametrize("event", DERIVED, ids=TYPES)
def test_matching_derived_event_takes_effect(event: Event) -> None:
    done = do(TOLD, message("other", "hello"), event)
    assert outcomes(done)[2:] == ["created" if event[0] == "memory" else "updated"]
    assert codes(done) == []


@pytest.mark.parametrize("event", DERIVED, ids=TYPES)
@pytest.mark.parametrize(
    "before", [[TOLD, forget(memory_id="told")], [TOLD, update("told", content=PORTO)], []],
    ids=["gone", "changed", "unknown"],
)  # fmt: skip
def test_derived_event_without_its_source_has_no_effect(event: Event, before: list[Event]) -> None:
    done = do(message("other", "hello"), *before, event, recall(include_history=True))
    assert (outcomes(done)[-1], codes(done)) == ("outdated", [])
    assert "fact" not in found(done.responses[0])


OTHER = message("other", "hello")
HOME = "category.summary", {"id": "e", "category": "home", "summary": "Lisbon", **of("told", LISBON)}
AGAIN = fact("again")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([TOLD, OTHER, forget(memory_id="other"), fact(**of("told", LISBON, "other"))], ["forgotten", "outdated"]),
        ([TOLD, update("told", content=PORTO), fact(**of("told"))], ["updated", "created"]),
        ([fact(receipt=False)], []),
        ([fact(), TOLD, fact(), AGAIN, AGAIN], ["outdated", "created", "created", "created", "duplicate"]),
        ([HOME, TOLD, HOME, HOME], ["outdated", "created", "updated", "duplicate"]),
    ],
    ids=["another source is gone", "no hash", "no receipt asked for", "source comes later", "its id is not used up"],
)
def test_derived_event_takes_effect_while_its_sources_hold(events: list[Event], expected: list[str]) -> None:
    done = do(*events)
    assert (outcomes(done)[-len(expected) :] if expected else done.receipts, codes(done)) == (expected, [])


def test_ineffective_events_are_counted_by_reason(tmp_path: Path) -> None:
    engine = Harness(tmp_path / "counted", one_log=True)
    other = DERIVED[-1][1] | {"model": "other"}
    made = [make_event(kind, **fields) for kind, fields in (fact(), fact(), TOLD, ("memory.embedding", other))]
    engine.run(MEMORIES, *made)
    assert engine.directory.unfit == {("memory", "outdated"): 2, ("memory.embedding", "other_model"): 1}


@pytest.mark.parametrize("kills", [False, True], ids=["through", "killed between steps"])
def test_many_messages_are_forgotten_with_their_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: bool
) -> None:
    monkeypatch.setattr(large, "STEP_WEIGHT", 30)
    engine = Harness(tmp_path / "steps", record={"headers": ()})
    told = [message(f"m{at}", session_id="s") for at in range(5)]
    facts = [fact(f"f{at}{number}", **of(f"m{at}")) for at in range(5) for number in range(4)]
    left = [message("left"), fact("stays", **of("left"))]
    engine.run(MEMORIES, *(make_event(kind, **fields) for kind, fields in (*told, *facts, *left)))
    kind, fields = forget(filter={"session_id": "s"})
    engine.run(MEMORIES, make_event(kind, **fields))
    steps = 0
    while engine.is_due:
        steps += 1
        engine.advance()
        if kills:
            engine.kill()
            engine.read(MEMORIES)
    assert steps > 3
    assert {Entry.decode(value).id for value in engine.table(keys.ENTRY)} == {"left", "stays"}
    assert engine.problems() == []


WITH_OTHER = [TOLD, OTHER, fact(**of("told", LISBON, "other"))]


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([TOLD, OTHER, fact(), forget(memory_id="told")], {"other"}),
        ([message("told", LISBON, session_id="s"), OTHER, fact(), forget(filter={"session_id": "s"})], {"other"}),
        ([*WITH_OTHER, forget(memory_id="other")], {"told"}),
        ([TOLD, fact(), forget(memory_id="fact")], {"told"}),
        ([TOLD, fact(), forget(memory_id="fact"), fact("next"), forget(memory_id="told")], set()),
        ([TOLD, fact(), update("told", category="home"), update("told", content=LISBON, tags=["a"])], {"told", "fact"}),
    ],
    ids=["by id", "by session", "another source", "the fact alone", "made again", "same text"],
)
def test_fact_is_forgotten_with_its_sources(events: list[Event], left: set[str]) -> None:
    now, ever, versions = do(*events, recall(), recall(include_history=True), history("fact")).responses
    assert found(now) == found(ever) == left
    assert (versions["status"] == "ok") == ("fact" in left)


def test_no_fact_is_made_of_a_fact() -> None:
    done = do(TOLD, fact(), fact("next", **of("fact")), fact("more", **of("told", LISBON, "fact")))
    assert codes(done) == [
        ("invalid_event", ["derived_from.memory_id"]), ("invalid_event", ["derived_from.others.0.memory_id"]),
    ]  # fmt: skip


def test_so_many_facts_are_made_of_one_message() -> None:
    done = do(TOLD, *(fact(f"f{number}") for number in range(MADE_MAX + 1)), update("told", content=PORTO), recall())
    assert codes(done) == [("invalid_event", ["derived_from"])]
    assert found(done.responses[0]) == {"told"}


def test_often_edited_message_gets_facts_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts of earlier texts do not count, up to a bound; all are removed with the message or their other sources."""
    monkeypatch.setattr("recallflow.operators.derived.MADE_MAX", 2)
    monkeypatch.setattr("recallflow.operators.derived.MADE_EVER_MAX", 7)
    edits: list[Event] = []
    for at in range(4):
        edits.append(update("told", content=f"{PORTO} {at}"))
        edits += [fact(f"f{at}{number}", **of("told", f"{PORTO} {at}", "other")) for number in range(2)]
    facts = [one[1]["id"] for one in edits if one[0] == "memory"]
    other = message("other", "hello")
    ever = recall(k=20, include_history=True)
    done = do(TOLD, other, *edits, recall(k=20), ever, forget(memory_id="other"), ever)
    assert codes(done) == []
    assert [one for one in outcomes(done) if one not in ("created", "updated")] == ["too_many", "forgotten"]
    told = [{"told", "other", "f30"}, {"told", "other", *facts[:-1]}, {"told"}]
    assert [*map(found, done.responses)] == told


def test_derived_values_fill_only_missing_fields() -> None:
    told = memory("told", LISBON, tags=["city"])
    found_out = update("told", category="home", tags=["lisbon"], **of("told", LISBON))
    again = update("told", category="work", **of("told", LISBON))
    done = do(told, found_out, again, get("told"))
    assert outcomes(done) == ["created", "updated", "unchanged"]
    version = done.responses[0]["versions"][0]
    assert (version["category"], version["tags"], version["filled"]) == ("home", ["city"], ["category"])


def summary(text: str, *sources: str) -> Event:
    derived = of(sources[0], None, *sources[1:]) if sources else {}
    return "category.summary", {"category": "home", "summary": text, **derived}


def asked() -> Event:
    return recall("Lisbon", max_tokens=1_000)


def said(response: dict[str, Any]) -> str:
    text: str = response["context"]["summaries"].get("home", "")
    return text


@pytest.mark.parametrize("change", [forget(memory_id="b"), update("b", content="nothing")], ids=["gone", "changed"])
def test_summary_is_deleted_with_its_first_source(change: Event) -> None:
    told = [memory(name, f"{name} lives in Lisbon", category="home") for name in ("a", "b", "c")]
    done = do(*told, summary("given"), summary("made", "a", "b"), asked(), change, asked(), forget(memory_id="c"))
    assert [said(response) for response in done.responses] == ["made", "given"]


Json = dict[str, Any]

ANN = Owner("acme", "prod", "ann")
STORY, MADE = ("a", "b", "c", "d"), ("x", "y", "z")
TEXTS = ("I live in Lisbon", "I moved to Porto", "tea")
EVERYTHING = EnrichmentTasks(embed=True, relationships=True, facts=True, categories=True, summaries=True)

ids = st.sampled_from((*STORY, *MADE))
told = st.sampled_from(STORY)
texts = st.sampled_from(TEXTS)
sessions = st.sampled_from(("s", "t"))
axes = st.integers(0, 3)


def _kind(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


sources = st.fixed_dictionaries({"memory_id": ids}, optional={"content_hash": texts.map(content_hash)})
derived = st.builds(lambda one, others: one | {"others": others}, sources, st.lists(sources, max_size=2))
edges = st.builds(
    lambda source, target, kind, sure: {"source": source, "target": target, "type": kind, "confidence": sure},
    ids, st.one_of(ids, st.just("entity:Lisbon")), st.sampled_from(("supersedes", "contradicts", "about")),
    st.sampled_from((0.6, 0.9)),
)  # fmt: skip
events = st.one_of(
    _kind("message", id=told, content=texts, session_id=sessions),
    _kind("message", id=told, content=texts, session_id=sessions),
    _kind("memory", id=st.sampled_from(MADE), content=texts, derived_from=derived),
    _kind("memory", id=st.sampled_from(MADE), content=texts, derived_from=derived, session_id=sessions),
    _kind("memory.update", memory_id=ids, content=texts),
    _kind("memory.update", memory_id=ids, category=st.sampled_from(("home", None))),
    st.builds(
        lambda one, category: {"type": "memory.update", "memory_id": one["memory_id"], "category": category,
                               "derived_from": one},
        sources, st.sampled_from(("home", "work")),
    ),
    _kind("memory.forget", memory_id=ids),
    _kind("memory.forget", filter=st.builds(lambda session: {"session_id": session}, sessions)),
    _kind("category.summary", category=st.sampled_from(("home", "work")), summary=texts, derived_from=derived),
    _kind("episode.summary", episode_id=st.builds(lambda one, session: episode_id(ANN, session, one), told, sessions),
          summary=texts, derived_from=derived),
    _kind("graph.edges", edges=st.lists(edges, min_size=1, max_size=2), derived_from=derived),
    st.builds(
        lambda one, text, axis: {"type": "memory.embedding", "memory_id": one, "content_hash": content_hash(text),
                                 "model": "flat", "embedding": [float(at == axis) for at in range(4)]},
        ids, texts, axes,
    ),
)  # fmt: skip
logs = st.lists(events, max_size=30)


def _read(path: Path, log: Sequence[Json], cuts: Sequence[int], wanted: EnrichmentTasks | None) -> Harness:
    """Read the log in batches, kill the process after each, and continue from the commit."""
    found = Harness(path, FlatEmbedder(), one_log=True, rules={"enrichment": wanted})
    found.write(MEMORIES, *log)
    for at in sorted({cut for cut in cuts if cut < len(log)}):
        found.read(MEMORIES, max(at - found._read[MEMORIES], 0))
        found.kill()
    found.read(MEMORIES)
    return found


@settings(max_examples=share(0.5))
@given(
    log=logs, cuts=st.lists(st.integers(0, 29), max_size=3), enriches=st.booleans(), share=st.sampled_from((8, 4_000))
)
def test_the_state_is_the_same_however_the_log_is_read(
    log: list[Json], cuts: list[int], enriches: bool, share: int
) -> None:
    common = {"tenant_id": "acme", "user_id": "ann"}
    events = [event | common | {"timestamp": 60_000 * at} for at, event in enumerate(log)]
    usual = large.STEP_WEIGHT
    with TemporaryDirectory() as folder:
        whole = _read(Path(folder) / "whole", events, (), None)
        try:
            large.STEP_WEIGHT = share
            cut = _read(Path(folder) / "cut", events, cuts, EVERYTHING if enriches else None)
        finally:
            large.STEP_WEIGHT = usual
        assert cut.hash() == whole.hash()
        for one in (whole, cut):
            _nothing_is_left_of_what_is_gone(one)
            one.stop()
            assert verify(one.path).problems == []


def _nothing_is_left_of_what_is_gone(engine: Harness) -> None:
    """Check by the rows that all sources are remembered and have the used text."""
    rows = {(row.id, row.version): row for row in map(MemoryRow.decode, engine.table(keys.ROW))}
    latest = {memory_id: max(version for one, version in rows if one == memory_id) for memory_id, _ in rows}
    now = {memory_id: rows[memory_id, version] for memory_id, version in latest.items()}
    for row in now.values():
        if row.derived_from is not None:
            said = [row.derived_from, *row.derived_from.get("others", [])]
            assert {one["memory_id"] for one in said} <= now.keys()
            if row.valid_to_ms is None:
                assert all(content_hash(now[one["memory_id"]].content) == one["content_hash"] for one in said)
    remembered = {row.seq for row in now.values()}
    summaries = [CategorySummaryRow.decode(value) for value in engine.table(keys.CATEGORY_SUMMARY)]
    assert all(remembered.issuperset(summary.sources) for summary in summaries)
    assert remembered == {Entry.decode(value).seq for value in engine.table(keys.ENTRY)}
    current = map(MemoryHead.decode, engine.table(keys.CURRENT))
    assert remembered == {one.seq for one in current if not one.forgotten}
    members = {Entry.decode(value).episode for value in engine.table(keys.ENTRY)}
    assert {EpisodeSummaryRow.decode(value).number for value in engine.table(keys.EPISODE_SUMMARY)} <= members
