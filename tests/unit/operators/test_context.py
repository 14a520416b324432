"""An assembled context: its parts, their order, and its budget."""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.embedders import load_embedder
from recallflow.embedder import Estimate, Kind, token_counter
from recallflow.operators.recall.context import (
    GRAPH_END,
    ITEMS_END,
    MISFITS_MAX,
    ROWS_AT_ONCE,
    SUMMARIES_END,
    assemble,
    priority_items,
)
from recallflow.queries import Mode
from recallflow.responses import Context, ContextItem, RecalledMemory
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Entry, MemoryRow
from tests.unit.operators.harness import make_entry, make_event, run_flow


class Letters:
    counted_by = "letters"

    def count_tokens(self, text: str) -> int:
        return len(text)


def item(memory_id: str, content: str) -> ContextItem:
    untold: dict[str, Any] = dict.fromkeys(("summary", "category", "score"))
    return ContextItem(id=memory_id, version=0, content=content, confidence=1, created_at="", **untold)


def ids(context: Context) -> list[str]:
    return [found.id for found in context.relevant_items]


def long_item(name: str, passage: str, rest: str) -> ContextItem:
    return item(name, passage + rest).model_copy(update={"excerpt": {"start": 0, "end": len(passage)}})


def test_long_memories_are_passages_first_and_whole_with_room() -> None:
    several = [long_item(name, name * 20, name * 30) for name in "abc"]
    contents = [found.content for found in assemble(95, Letters(), {}, [], ranked=several).relevant_items]
    # Two passages up to half; the first one becomes whole up to four fifths; the third fits as a passage.
    assert contents == ["a" * 50, "b" * 20, "c" * 20]


def test_best_memory_precedes_others_that_fit_better() -> None:
    ranked = [long_item("a", "a" * 70, "rest"), *(item(name, name * 9) for name in "bcd")]
    found = assemble(100, Letters(), {}, [], ranked=ranked).relevant_items
    assert [(one.id, len(one.content)) for one in found] == [("a", 74), ("b", 9), ("c", 9)]


@pytest.mark.parametrize(
    ("rule", "passage", "stems", "room", "shown"),
    [
        ("", "aaaa bbbb cccc. dddd eeee. ", [], 34, "until 3 May 2024: aaaa bbbb cccc."),
        ("", "aaaa eeeed cccc. dddd eeee. ", ["eeee", "dddd"], 34, "until 3 May 2024: dddd eeee."),
        ("", "小王住在杭州，小李住在上海和北京。" * 2, [], 33, "until 3 May 2024: 小王住在杭州，小李住在上海和北"),
        ("", "He moved. The party was nice here. ", ["move"], 27, "until 3 May 2024: He moved."),
        ("rule", "aaaa bbbb cccc. ", [], 28, "until 3 May 2024: aaaa bbbb"),
        ("rule", "aaaa bbbb cccc. ", [], 20, None),
    ],
)
def test_best_memory_is_cut_to_the_room(rule: str, passage: str, stems: list[str], room: int, shown: str) -> None:
    best = long_item("a", passage, "rest" * 20).model_copy(update={"until": "2024-05-03T00:00:00Z"})
    rules = [item("rule", rule)] if rule else []
    found = assemble(room + len(rule), Letters(), {}, rules, ranked=[best], stems=stems).relevant_items
    assert {one.id: one.content for one in found} == {one: text for one, text in (("rule", rule), ("a", shown)) if text}


def test_long_memory_whose_passage_does_not_fit_is_its_summary() -> None:
    long = long_item("a", "p" * 20, "r" * 30).model_copy(update={"summary": "short"})
    assert [found.content for found in assemble(10, Letters(), {}, [], ranked=[long]).relevant_items] == ["short"]


def test_short_rule_after_many_long_ones_precedes_ranked_memories() -> None:
    rules = [*(item(f"m{n}", "x" * 90) for n in range(3 * MISFITS_MAX)), item("short", "s")]
    assert ids(assemble(80, Letters(), {}, rules, ranked=[item("m", "r" * 70)]))[0] == "short"


def test_author_counts_and_a_passage_grows_into_the_room_left() -> None:
    words = "The boat is at pier four. " + "Nothing else of note was said that day. " * 400
    told_of = [make_event("message", 1_000, id="m", name="Ann", role="user", content=words)]
    (short, longer) = (context_of(told_of, make_event("recall", 9_000, query="boat", max_tokens=n)) for n in (150, 900))
    one, other = short["relevant_items"][0], longer["relevant_items"][0]
    assert (one["name"], one["role"]) == ("Ann", "user")
    assert short["token_count"] == -(-len("Ann: " + one["content"]) // 4)
    assert one["content"] in other["content"] == words[other["excerpt"]["start"] : other["excerpt"]["end"]]
    assert 700 < longer["token_count"] <= 900


def test_rule_above_four_fifths_keeps_its_place() -> None:
    assert ids(assemble(100, Letters(), {}, [item("m0", "x" * 90)], ranked=[item("m", "r" * 20)])) == ["m0"]


@pytest.mark.parametrize(
    ("texts", "held"),
    [
        (["I live in Porto.", "I  live in Porto.", "i live in Porto!", "I live in Porto now."], 2),
        (["मेरा बेटा", "मेरी बेटी"], 2), (["I like C++", "I like C#"], 2), (["-5 degrees", "5 degrees"], 2),
    ],
)  # fmt: skip
def test_memory_with_the_text_of_another_is_left_out(texts: list[str], held: int) -> None:
    told_of = [make_event("memory", 1_000 + n, id=f"m{n}", content=text) for n, text in enumerate(texts)]
    context = context_of(told_of, make_event("recall", 9_000, query=texts[0], max_tokens=1_000))
    assert len(context["relevant_items"]) == held
    assert context["omitted"]["relevant_items"] == {"filters": 0, "budget": 0}


def test_context_with_room_holds_memories_beyond_the_answer() -> None:
    told_of = [make_event("memory", 1_000 + n, id=f"m{n}", content=f"The boat lies at pier {n}") for n in range(9)]
    asked = make_event("recall", 9_000, query="boat", k=2, max_tokens=1_000)
    (response,) = run_flow([*told_of, asked]).responses
    assert len(response["memories"]) == 2
    context = response["context"]
    assert len(context["relevant_items"]) == 9
    assert [one["id"] for one in context["relevant_items"][:2]] == [one["id"] for one in response["memories"]]
    assert context["omitted"]["relevant_items"] == {"filters": 0, "budget": 0}


def test_context_holds_no_memory_below_the_minimum_relevance() -> None:
    told_of = [make_event("memory", 1_000 + n, id=f"m{n}", content=f"The boat lies at pier {n}") for n in range(4)]
    others = [make_event("memory", 2_000 + n, content=f"Tea costs {n} coins") for n in range(4)]
    asked = make_event("recall", 9_000, query="boat", k=2, min_relevance=0.3, max_tokens=1_000)
    (response,) = run_flow([*told_of, *others, asked]).responses
    assert all("boat" in one["content"] for one in response["context"]["relevant_items"])


texts = st.lists(st.integers(0, 40).map("x".__mul__), max_size=12)


@given(
    st.integers(1, 200), texts, texts,
    st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(0, 10**9)), max_size=8),
)  # fmt: skip
def test_sections_keep_their_bounds_and_order(
    max_tokens: int, said: list[str], contents: list[str], graph: list[dict[str, Any]]
) -> None:
    summaries = {f"c{n}": text for n, text in enumerate(said)}
    items = [item(f"m{n}", chr(ord("a") + n) * len(text)) for n, text in enumerate(contents)]
    context = assemble(max_tokens, Letters(), summaries, items, graph)
    in_summaries = greedy([*summaries.items()], 0, SUMMARIES_END * max_tokens)
    taken = sum(map(size, in_summaries))
    before, read = list[ContextItem](), list[ContextItem]()
    for one in items:
        if taken + 1 > ITEMS_END * max_tokens:
            break
        read.append(one)
        before += greedy([one], taken, ITEMS_END * max_tokens)
        taken += size(one) if one in before else 0
    before += greedy([one for one in read if one not in before], taken, GRAPH_END * max_tokens)
    taken = sum(map(size, [*in_summaries, *before]))
    entities = greedy(graph, taken, GRAPH_END * max_tokens)
    taken += sum(map(size, entities))
    rest = greedy([one for one in items if one not in before], taken, GRAPH_END * max_tokens)
    taken += sum(map(size, rest))
    assert [*context.summaries.items()] == in_summaries
    assert context.relevant_items == [one for one in items if one in before or one in rest]
    assert context.graph_context == entities
    assert context.token_count == taken <= max_tokens


def size(entry: Any) -> int:
    match entry:
        case (_, text):
            return len(text)
        case ContextItem():
            return len(entry.content)
    return len(orjson.dumps(entry))


def greedy(entries: Sequence[Any], taken: int, end: float) -> list[Any]:
    kept = []
    for entry in entries:
        if 0 < size(entry) <= end - taken:
            taken += size(entry)
            kept.append(entry)
    return kept


def indexed(*entries: Entry) -> OwnerIndex:
    index = OwnerIndex("model", 2)
    index.add(entries, {})
    return index


def ranked(memory_id: str, layer: str, rank: int, content: str = "") -> RecalledMemory:
    untold = ("summary", "category", "role", "name", "session_id", "project_id", "episode_id")
    fields: dict[str, Any] = dict.fromkeys(untold)
    return RecalledMemory(
        id=memory_id, version=0, current=True, content=content or f"text of {memory_id}", kind="fact", layer=layer,
        tags=[], entities=[], created_at="2025-01-01T00:00:00Z", updated_at="2025-01-01T00:00:00Z", importance=0.5,
        confidence=1, score=1 / rank, rank=rank, relevance=0.5, why=[], **fields,
    )  # fmt: skip


def row(index: OwnerIndex, slot: int) -> MemoryRow:
    memory_id = index.ids[slot]
    return MemoryRow(memory_id, slot, 0, 0, f"text of {memory_id}", created_ms=0, ingested_ms=0)


def layers(index: OwnerIndex, memories: Sequence[RecalledMemory], permitted: Sequence[int] | None = None) -> list[str]:
    places = np.arange(index.conversation.size) if permitted is None else np.array(permitted, np.int64)
    read = priority_items(index, places, memories, lambda slots: [row(index, slot) for slot in slots])
    return [found.id for found in read]


def test_rules_precede_the_working_layer() -> None:
    index = indexed(
        make_entry(0, id="lasting", episode=0), make_entry(1, id="rule of b", layer="rule", importance=0.5, episode=0),
        make_entry(2, id="working", layer="working", episode=0),
        make_entry(3, id="rule of a", layer="rule", importance=0.5, episode=0),
        make_entry(4, id="top rule", layer="rule", importance=0.9, episode=0),
        make_entry(5, id="older unranked", layer="working", episode=0, created_ms=1),
        make_entry(6, id="newer unranked", layer="working", episode=0, created_ms=2),
        make_entry(7, id="lasting unranked", episode=0),
    )  # fmt: skip
    memories = [
        ranked("lasting", "long_term", 1), ranked("rule of b", "rule", 2), ranked("later", "long_term", 3),
        ranked("working", "working", 4),
    ]  # fmt: skip
    of_rules, of_work = ["top rule", "rule of a", "rule of b"], ["working", "newer unranked", "older unranked"]
    assert layers(index, memories) == [*of_rules, *of_work]


@pytest.mark.parametrize("mode", get_args(Mode))
def test_every_rule_and_working_memory_is_paid_for_once(mode: Mode) -> None:
    fields: list[dict[str, Any]] = [{"category": "trade"}, {"tags": ["trade"]}, {"kind": "trade"}, {}]
    layers_told = [(layer, of) for layer in ("rule", "working") for of in fields]
    told = [
        make_event("memory", 1_000 + n, id=f"m{n}", layer=layer, content=f"Tea costs {n} coins", **of)
        for n, (layer, of) in enumerate(layers_told)
    ]
    others = [make_event("memory", 2_000 + n, content=f"The boat lies at pier {n}") for n in range(30)]
    context = context_of([*told, *others], make_event("recall", 9_000, query="boat", mode=mode, max_tokens=2_000))
    texts = [*context["summaries"].values(), *(one["content"] for one in context["relevant_items"])]
    assert [sum(event["content"] in text for text in texts) for event in told] == [1] * len(told)


def test_context_holds_the_latest_version_of_a_rule() -> None:
    index = OwnerIndex("model", 2)
    old = make_entry(0, id="r", layer="rule", version=0, importance=0.9)
    index.append_versions([old], {})
    index.add([make_entry(0, id="r", layer="rule", version=1, importance=0.1)], {})
    read: list[int] = []

    def rows(slots: list[int]) -> list[MemoryRow]:
        read.extend(int(index.facts["version"][slot]) for slot in slots)
        return [row(index, slot) for slot in slots]

    assert [found.id for found in priority_items(index, np.arange(2), [], rows)] == ["r"]
    assert read == [1]


def test_many_rules_are_read_as_far_as_they_are_wanted() -> None:
    index = indexed(*(make_entry(n, layer="rule", episode=0) for n in range(5 * ROWS_AT_ONCE)))
    reads: list[int] = []

    def rows(slots: list[int]) -> list[MemoryRow]:
        reads.append(len(slots))
        return [row(index, slot) for slot in slots]

    found = priority_items(index, np.arange(index.conversation.size), [], rows)
    for _ in range(ROWS_AT_ONCE + 1):
        next(found)
    assert reads == [ROWS_AT_ONCE] * 2


def told() -> list[dict[str, Any]]:
    return [
        make_event(
            "memory", 1_000, id="t", layer="rule", category="tea", content="Never boil green tea", importance=0.9
        ),
        make_event("memory", 2_000, id="w", layer="working", category="work", content="The tea order is open"),
        make_event("memory", 3_000, id="l", category="tea", content="Ann likes green tea", confidence=0.75),
        make_event("memory", 4_000, id="x", layer="rule", category="work", content="Lock the door"),
        make_event("category.summary", 5_000, category="tea", summary="Ann drank black tea"),
        make_event("category.summary", 6_000, category="work", summary="There is an office"),
        make_event("category.summary", 7_000, category="attic", summary="It is empty"),
        make_event("category.summary", 8_000, category="tea", summary="Ann drinks green tea"),
    ]


def context_of(events: list[dict[str, Any]], query: dict[str, Any]) -> dict[str, Any]:
    (response,) = run_flow([*events, query]).responses
    context: dict[str, Any] = response["context"]
    return context


def test_a_recall_with_a_budget_assembles_a_context() -> None:
    query = make_event("recall", 9_000, query="green tea", mode="relevance", k=2, max_tokens=200)
    (response,) = run_flow([*told(), query]).responses
    context = response["context"]
    scores = {memory["id"]: memory["score"] for memory in response["memories"]}
    assert [item["id"] for item in context["relevant_items"]] == ["t", "x", "w", "l"]
    usual = {"version": 0, "summary": None, "confidence": 1, "score": None, "excerpt": None}
    usual |= {"role": None, "name": None}
    lock = {"id": "x", "content": "Lock the door", "category": "work", "created_at": "1970-01-01T00:00:04Z"}
    likes: dict[str, Any] = {
        "id": "l", "content": "Ann likes green tea", "category": "tea", "created_at": "1970-01-01T00:00:03Z",
    }  # fmt: skip
    order = {"id": "w", "content": "The tea order is open", "category": "work", "created_at": "1970-01-01T00:00:02Z"}
    likes |= {"confidence": 0.75, "score": scores["l"]}
    assert context["relevant_items"][1:] == [usual | lock, usual | order, usual | likes]
    # The ranked memories' category first, then the others by name.
    told_of = {"tea": "Ann drinks green tea", "attic": "It is empty", "work": "There is an office"}
    assert [*context["summaries"].items()] == [*told_of.items()]
    # 20, 11 and 18 characters; 20, 13, 21 and 19.
    assert (context["token_count"], context["counted_by"]) == (5 + 3 + 5 + 5 + 4 + 6 + 5, "estimate")
    assert context["graph_context"] == []
    assert (response["status"], response["warnings"]) == ("ok", [])


def test_summary_replaces_a_text_that_does_not_fit() -> None:
    memory = make_event("memory", 1, id="m", content="Ann talked of tea, of tea, and of tea", summary="Ann likes tea")
    query = make_event("recall", 9, query="tea", max_tokens=6)
    (item,) = context_of([memory], query)["relevant_items"]
    assert (item["content"], item["summary"], item["excerpt"]) == ("Ann likes tea", "Ann likes tea", None)
    (item,) = context_of([memory], query | {"max_tokens": 99})["relevant_items"]
    assert (item["content"], item["summary"]) == (memory["content"], memory["summary"])


def test_context_counts_memories_left_out_by_filters_and_budget() -> None:
    expired = make_event("memory", 3, id="e", category="tea", content="Tea is sold out", expires_at=4)
    query = make_event("recall", 9_000, query="green tea", mode="relevance", k=2, max_tokens=10)
    whole = context_of([*told(), expired], query | {"max_tokens": 200})
    assert [*whole["omitted"]] == ["summaries", "relevant_items", "graph_context"]
    assert all(omitted == {"filters": 0, "budget": 0} for omitted in whole["omitted"].values())
    context = context_of([*told(), expired], query | {"filters": {"categories": ["tea", "attic"]}})
    # The budget has room for the first summary and the rule, and not for the other memory.
    assert [*context["summaries"]] == ["tea"]
    assert [one["id"] for one in context["relevant_items"]] == ["t"]
    assert context["omitted"] == {
        "summaries": {"filters": 1, "budget": 1}, "relevant_items": {"filters": 2, "budget": 1},
        "graph_context": {"filters": 0, "budget": 0},
    }  # fmt: skip


def test_graph_context_follows_the_filters() -> None:
    def memory(at_ms: int, project: str, source: str, target: str) -> dict[str, Any]:
        relations = [{"source": source, "type": "knows", "target": target}]
        content = f"{source} knows {target}"
        return make_event("memory", at_ms, content=content, project_id=project, relations=relations)

    events = [memory(1, "open", "Ann", "Bob"), memory(2, "secret", "Ann", "Carol"), memory(3, "secret", "Bob", "Dave")]
    query = make_event("recall", 9, query="Whom does Ann know?", max_tokens=500)
    found = [
        context_of(events, query | narrowed)
        for narrowed in ({}, {"filters": {"project_id": "open"}}, {"project_id": "open"})
    ]
    every, filtered, at_top = (
        {entry["name"]: [one["target"] for one in entry["relationships"]] for entry in context["graph_context"]}
        for context in found
    )
    assert every == {"Ann": ["Carol", "Bob"], "Bob": ["Dave"], "Carol": [], "Dave": []}
    assert filtered == at_top == {"Ann": ["Bob"], "Bob": []}
    asked = query | {"filters": {"project_id": "open"}, "entity_urns": ["Carol"]}
    assert context_of(events, asked)["omitted"]["graph_context"] == {"filters": 1, "budget": 0}


class Counts:
    counted_by = "mine"

    def count_tokens(self, text: str) -> int:
        return len(text.split())


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        (" ", 1),
        ("a", 1),
        ("four", 1),
        ("fours", 2),
        ("Ann likes tea.", 4),  # 14 characters
        ("安娜", 2),
        ("安娜 likes tea", 5),  # two, and 10 characters
        ("アンナはお茶が好き。", 10),
        ("안나는 차를", 6),  # five, and a blank
        ("𠀀", 1),
        ("👍", 1),
    ],
)
def test_token_estimate_is_four_characters_or_one_cjk(text: str, tokens: int) -> None:
    assert Estimate().count_tokens(text) == tokens


def test_exact_counter_precedes_embedders_and_the_estimate() -> None:
    class Embedder(Counts):
        counted_by = "the embedder"
        name, dimension = "e", 1
        kind: Kind = "contextual"
        embed = load_embedder("hash").embed

    hashing = load_embedder("hash")
    assert token_counter(Counts(), Embedder()).counted_by == "mine"
    assert token_counter(None, Embedder()).counted_by == "the embedder"
    assert token_counter(None, hashing).counted_by == "estimate"
    assert token_counter(Counts(), hashing).counted_by == "mine"
