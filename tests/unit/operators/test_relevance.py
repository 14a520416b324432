"""Relevance of a memory and answerability of a question, by hand and by laws."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from recallflow.embedder import NO_FLOATS, TextVectors
from recallflow.operators.recall.columns import compute
from recallflow.operators.recall.question import analyse_question
from recallflow.operators.recall.relevance import EVIDENCE, SETTINGS, Judge, rarity
from recallflow.operators.recall.relevance_weights import ANSWERABLE, BASES, RELEVANCE, WEIGHT_KEYS, Basis
from recallflow.operators.recall.weights import WEIGHTS
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Vectors
from tests.unit.operators.harness import codes, make_entry, make_event, run_flow

PORTO = "I moved to Porto in spring and rent a flat by the river"
HERE = "Do I rent a flat in Porto?"
ELSEWHERE = "What is the boiling point of mercury in a vacuum chamber?"


def indexed(said: Sequence[tuple[int, str]]) -> OwnerIndex:
    """Messages by their episode and stems, with vectors at angles of their own."""
    index = OwnerIndex("model", 2)
    entries = [make_entry(seq, episode=episode, stems=stems) for seq, (episode, stems) in enumerate(said)]
    rows = {
        (seq, 0): Vectors("model", np.array([[math.cos(seq), math.sin(seq)]], np.float32)) for seq in range(len(said))
    }
    index.add(entries, rows)
    return index


def judge(index: OwnerIndex, question: str, basis: Basis = "spelling", participants: Sequence[str] = ()) -> Judge:
    asked = analyse_question(question, participants)
    query = TextVectors(np.array([1, 0], np.float32), NO_FLOATS)
    found = compute(index, asked, query, WEIGHTS["spelling"]["people"])
    return Judge(index, asked, found, basis, index.conversation.size)


def test_long_words_are_rarer_and_frequent_ones_count_less() -> None:
    assert rarity("tea", 0, 0) == rarity("tea", 1, 1) == 4 + 3 / 2
    assert rarity("vaccination", 0, 10) == 7.5
    assert rarity("tea", 31, 100) == pytest.approx(-math.log(30 / 120))
    assert rarity("tea", 2, 1_000) == 5.5  # -ln(1/1020) = 6.9 is more than is known of three letters


def test_figures_by_hand() -> None:
    # "bike" and "tour" are worth 6 nats each; neither is held beside a first time.
    index = indexed([(0, "bike"), (0, "x"), (0, "tour y"), (0, "x"), (1, "x")])
    found = judge(index, "Bike tour?").features(np.arange(5))
    np.testing.assert_allclose(found.of("coverage"), [0.5, 0, 0.5, 0, 0])
    np.testing.assert_allclose(found.of("window_coverage"), [1, 1, 1, 0.5, 0])
    # Of one word, a 30th of the mean length: 0.5·2.2/(1 + 1.2·(0.25 + 0.75/30)) = 0.5·2.2/1.33
    np.testing.assert_allclose(found.of("bm25"), [0.5 * 2.2 / 1.33, 0, 0.5 * 2.2 / 1.36, 0, 0], rtol=1e-6)
    assert not found.of("token_match").any()  # there are no tokens
    np.testing.assert_allclose(found.of("cosine"), np.cos(np.arange(5)), atol=0.01)
    np.testing.assert_allclose(found.of("length"), np.log([2, 2, 3, 2, 2]))
    assert not found.of("speaker").any()


def test_answerability_evidence_by_hand() -> None:
    # "bike", "tour" and "cost" are worth 6 nats each, and nobody speaks of what it costs.
    index = indexed([(0, "bike"), (1, "tour")])
    asked = judge(index, "Bike tour cost?")
    found = dict(zip(EVIDENCE, asked.evidence(asked.features(np.array([1, 0]))), strict=True))
    assert found["coverage"] == pytest.approx(1 / 3)
    assert found["nearest coverage"] == pytest.approx(1 / 3)
    assert found["joint_coverage"] == pytest.approx(2 / 3)
    assert found["missing"] == pytest.approx(1 / 3)
    assert found["no_overlap"] == 0
    settings = dict(zip(SETTINGS, asked.settings, strict=True))
    of_words = {"constant": 1, "several_people": 0, "word_count": 0.3, "rarity": 18 / 50, "no_words": 0}
    assert settings == pytest.approx(of_words | {"memory_count": math.log(2) / 7, "inverse_count": 1 / 2})


def test_a_probability_is_the_logistic_of_the_weighted_sum() -> None:
    index = indexed([(0, "bike"), (0, "bike tour")])
    asked = judge(index, "Which bike tour?")
    features = asked.features(np.arange(2))
    settings = dict(zip(SETTINGS, asked.settings, strict=True))
    at = WEIGHT_KEYS.index(asked.weight_key)
    logit = np.zeros(2)
    for name, weights in RELEVANCE.items():
        feature, _, setting = name.partition(" · ")
        logit += weights[at] * features.of(feature) * settings[setting or "constant"]
    np.testing.assert_allclose(asked.relevance(features), 1 / (1 + np.exp(-logit)))
    evidence = dict(zip(EVIDENCE, asked.evidence(features), strict=True))
    parts = [(weights[at], name.partition(" · ")) for name, weights in ANSWERABLE.items()]
    total = sum(weight * evidence[feature] * settings[setting or "constant"] for weight, (feature, _, setting) in parts)
    by_itself = 1 / (1 + math.exp(-total))
    assert asked.answerable(features, highest=by_itself) == pytest.approx(by_itself)
    assert asked.answerable(features, highest=1.0) == 1.0
    assert asked.answerable(features, highest=by_itself / 60) == pytest.approx(by_itself / 10)


def test_notes_assistants_and_caseless_scripts_have_own_weights() -> None:
    people, both, notes = OwnerIndex("model", 2), OwnerIndex("model", 2), OwnerIndex("model", 2)
    people.add([make_entry(n, session_id="s", role="user", author=name) for n, name in enumerate(["Ann", "Bo"])], {})
    both.add(
        [make_entry(n, session_id="s", role=role, author=role) for n, role in enumerate(["user", "assistant"])], {}
    )
    notes.add([make_entry(0, role="user", author="user")], {})
    assert judge(people, "tea?").weight_key == ("spelling", "people")
    assert judge(both, "tea?", "words").weight_key == ("words", "assistant")
    assert judge(notes, "tea?").weight_key == ("spelling", "notes")
    assert [judge(one, "妹妹对什么过敏?").weight_key[1] for one in (both, notes)] == ["unspaced", "unspaced"]


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("held", ["bike", "bike tour", "violin", "bike tour cost"])
def test_unrelated_memories_change_no_relevance(basis: Basis, held: str) -> None:
    found = []
    for others in (0, 4, 99, 999):
        said = [(0, held), *((n + 1, f"kettle{n} broke") for n in range(others))]
        asked = judge(indexed(said), "What does the bike tour cost?", basis)
        found.append(float(asked.relevance(asked.features(np.zeros(1, np.int64)))[0]))
    assert max(found) - min(found) < 0.05


TOLD = [PORTO, "The kettle is broken again", "Ann plays the violin", "We had soup", "It rained", "He sold a bike"]


def ask(question: str, memories: int = len(TOLD), **fields: Any) -> dict[str, Any]:
    events = [make_event("message", 60_000 * n, id=f"m{n}", content=text) for n, text in enumerate(TOLD[:memories])]
    (response,) = run_flow([*events, make_event("recall", 900_000, query=question, **fields)]).responses
    return response


def relevance_of(response: dict[str, Any]) -> dict[str, float]:
    return {memory["id"]: memory.get("relevance") for memory in response["memories"]}


def test_told_facts_are_relevant_and_world_knowledge_is_not() -> None:
    here, elsewhere = ask(HERE, memories=1), ask(ELSEWHERE, memories=1)
    assert here["answerable"] > 0.9
    assert relevance_of(here)["m0"] > 0.6
    assert "nothing_relevant" not in codes(here)
    assert relevance_of(elsewhere)["m0"] < 0.3  # so many are evidence of owners' only memories that share no word
    assert elsewhere["answerable"] < 0.4
    assert "nothing_relevant" in codes(elsewhere)
    assert elsewhere["status"] == "ok"


def test_memories_below_min_relevance_are_left_out() -> None:
    every = relevance_of(ask(HERE))
    found = ask(HERE, min_relevance=0.5)
    assert relevance_of(found) == {name: value for name, value in every.items() if value >= 0.5} == {"m0": every["m0"]}
    assert found["memories"][0]["rank"] == 1
    assert [memory["id"] for memory in found["memories"] if memory["explanation"]] == ["m0"]
    assert "nothing_relevant" not in codes(found)


def test_empty_answer_after_min_relevance_is_a_warning() -> None:
    found = ask(HERE, min_relevance=1)
    assert (found["memories"], codes(found), found["status"]) == ([], ["nothing_relevant"], "ok")


def test_empty_memory_has_zero_answerability() -> None:
    found = ask(HERE, memories=0)
    assert (found["answerable"], found["memories"]) == (0, [])
    assert "nothing_relevant" not in codes(found)
    assert ask(HERE, filters={"kinds": ["fact"]})["answerable"] == 0
