"""Messages, edits, forgets and derived events in any order give the same state, without leftovers."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.events import content_hash
from recallflow.operators import large
from recallflow.operators.episodes import episode_id
from recallflow.operators.rules import EnrichmentTasks
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.rows import CategorySummaryRow, Current, Entry, EpisodeSummaryRow, MemoryRow
from recallflow.state.verify import verify
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, FlatEmbedder, Harness

Event = dict[str, Any]

ANN = Owner("acme", "prod", "ann")
TOLD, MADE = ("a", "b", "c", "d"), ("x", "y", "z")
TEXTS = ("I live in Lisbon", "I moved to Porto", "tea")
EVERYTHING = EnrichmentTasks(embed=True, relationships=True, facts=True, categories=True, summaries=True)

ids = st.sampled_from((*TOLD, *MADE))
told = st.sampled_from(TOLD)
texts = st.sampled_from(TEXTS)
sessions = st.sampled_from(("s", "t"))
axes = st.integers(0, 3)


def _kind(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Event]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


def _hash(text: str | None) -> dict[str, str]:
    return {} if text is None else {"content_hash": content_hash(text)}


sources = st.builds(lambda memory_id, text: {"memory_id": memory_id} | _hash(text), ids, st.none() | texts)
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


def _logged(log: Sequence[Event]) -> list[Event]:
    common = {"tenant_id": "acme", "user_id": "ann"}
    return [event | common | {"timestamp": 60_000 * at} for at, event in enumerate(log)]


def _read(path: Path, log: Sequence[Event], cuts: Sequence[int], wanted: EnrichmentTasks | None) -> Harness:
    """Read the log in batches, kill the process after each, and continue from the commit."""
    found = Harness(path, FlatEmbedder(), one_log=True, rules={"wanted": wanted})
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
    log: list[Event], cuts: list[int], enriches: bool, share: int
) -> None:
    events, usual = _logged(log), large.SHARE
    with TemporaryDirectory() as folder:
        whole = _read(Path(folder) / "whole", events, (), None)
        try:
            large.SHARE = share
            cut = _read(Path(folder) / "cut", events, cuts, EVERYTHING if enriches else None)
        finally:
            large.SHARE = usual
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
    current = map(Current.decode, engine.table(keys.CURRENT))
    assert remembered == {one.seq for one in current if not one.forgotten}
    members = {Entry.decode(value).episode for value in engine.table(keys.ENTRY)}
    assert {EpisodeSummaryRow.decode(value).number for value in engine.table(keys.EPISODE_SUMMARY)} <= members
