"""Categories without a given summary are summarised from their memories; rules assign categories."""

from typing import Any

import pytest

from recallflow.control import Category, ControlHistory
from recallflow.operators.recall.category_summaries import CATEGORIES, category_of
from recallflow.state.rows import MemoryRow
from tests.unit.operators.harness import make_event, run_flow

OF_TENANT = {"boats": "Boats", "rule": "Rule", "fact": "Fact"}


@pytest.mark.parametrize(
    ("fields", "known", "category"),
    [
        ({"category": "home", "topics": ["boats"], "tags": ["sea"], "kind": "rule"}, {}, "home"),
        ({"topics": ["boats", "oars"], "tags": ["sea"], "kind": "rule"}, {}, "boats"),
        ({"tags": ["sea", "salt"], "kind": "rule"}, {}, "sea"),
        ({"kind": "rule"}, {}, "rule"),
        ({"kind": "fact"}, {}, None),
        ({"kind": "message"}, {}, None),
        ({"category": "home", "topics": ["boats"]}, OF_TENANT, "home"),
        ({"topics": ["oars", "BOATS"]}, OF_TENANT, "Boats"),
        ({"topics": ["oars"], "tags": ["sea", "boats"]}, OF_TENANT, "Boats"),
        ({"topics": ["oars"], "kind": "rule"}, OF_TENANT, "Rule"),
        ({"topics": ["oars"], "kind": "preference"}, OF_TENANT, "oars"),
        ({"kind": "fact"}, OF_TENANT, None),
    ],
)
def test_category_is_given_or_found(fields: dict[str, Any], known: dict[str, str], category: str | None) -> None:
    assert category_of(MemoryRow("m", 0, 0, 0, "tea", 0, 0, **fields), known) == category


def summaries(told: list[dict[str, Any]], **fields: Any) -> dict[str, str]:
    (found,) = run_flow([*told, make_event("recall", 9_000, query="boat", max_tokens=2_000, **fields)]).responses
    context: dict[str, str] = found["context"]["summaries"]
    return context


def test_without_a_model_categories_are_summed_up() -> None:
    told = [
        make_event("memory", 1_000, category="harbour", content="We agreed to sell the boat to Nils for 7,000."),
        make_event("memory", 2_000, category="harbour", content="It was nice."),
        make_event("memory", 3_000, topics=["harbour"], content="The boat lies at pier 12."),
        make_event("memory", 4_000, tags=["winter"], content="The boat comes out in November."),
        make_event("memory", 5_000, kind="preference", content="Ida likes a red hull."),
        make_event("message", 6_000, content="The boat is wet."),
        make_event("category.summary", 7_000, category="winter", summary="Told by somebody."),
    ]
    assert summaries(told) == {
        "harbour": "We agreed to sell the boat to Nils for 7,000. The boat lies at pier 12.",
        "preference": "Ida likes a red hull.",
        "winter": "Told by somebody.",
    }
    assert [*summaries(told, filters={"categories": ["harbour"]})] == ["harbour"]
    private = {"created_before": 2_500}
    assert summaries(told, filters=private)["harbour"].count("boat") == 1


def test_a_context_sums_up_by_the_tenants_categories() -> None:
    told = [
        make_event("memory", 1_000, topics=["pier", "harbour"], content="The boat lies at pier 12."),
        make_event("memory", 2_000, topics=["pier"], content="The boat was sold to Nils."),
        make_event("recall", 9_000, query="boat", max_tokens=2_000),
    ]
    decisions = ControlHistory()
    for at_ms, name, removed in ((0, "Harbour", False), (0, "pier", False), (1, "pier", True)):
        event = Category(type="category", tenant_id="acme", name=name, description="Boats.", removed=removed)
        decisions.add(at_ms, event)
    (found,) = run_flow(told, decisions=decisions).responses
    assert found["context"]["summaries"] == {
        "Harbour": "The boat lies at pier 12.",
        "pier": "The boat was sold to Nils.",
    }


def test_a_context_sums_up_so_many_categories_at_most() -> None:
    told = [make_event("memory", n, category=f"c{n}", content=f"The boat {n}.") for n in range(CATEGORIES + 5)]
    assert len(summaries(told)) == CATEGORIES
