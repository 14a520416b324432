"""Budgets of language models, and answers without a JSON mode."""

import json
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.llm.models import CallFailed, _checked, read_answer
from recallflow.connectors.llm.policy import DAY_S, Reserved, TokenBudget
from recallflow.errors import ModelError
from recallflow.llm import Spent
from recallflow.operators.enrichment.prompts import NUMBER, TEXT, TRUTH, fields, listed

LIMITS = {"acme": 100, "globex": 30, "free": None}
TENANTS = st.sampled_from([*LIMITS])


@given(st.lists(st.tuples(TENANTS, st.integers(0, 60), st.floats(0, 1), st.integers(0, 3), st.booleans())))
def test_no_tenant_spends_more_than_its_limit_in_a_day(calls: list[tuple[str, int, float, int, bool]]) -> None:
    """Calls reserve tokens and use a part of them; some end at once, others later, even the next day."""
    now_s = 0.0
    budget = TokenBudget(LIMITS.get, lambda: now_s)
    spent: Counter[tuple[int, str]] = Counter()
    under_way: list[tuple[Reserved, int]] = []
    for tenant, tokens, share, ending, midnight in calls:
        if midnight:
            now_s += DAY_S
            under_way.clear()  # killed
        day = int(now_s // DAY_S)
        held = sum(reserved.tokens for reserved, _ in under_way if reserved.tenant_id == tenant)
        limit = LIMITS[tenant]
        fits = limit is None or spent[day, tenant] + held + tokens <= limit
        if fits:
            under_way.append((budget.reserve(tenant, tokens), int(tokens * share)))
        else:
            with pytest.raises(ModelError, match="over_budget"):
                budget.reserve(tenant, tokens)
        for reserved, cost in under_way[:ending]:
            budget.give_back(reserved, cost)
            spent[day, reserved.tenant_id] += cost
        del under_way[:ending]
        assert all(limit is None or spent[day, name] <= limit for name, limit in LIMITS.items())


def test_call_over_midnight_costs_its_last_day() -> None:
    now_s = DAY_S - 1.0
    budget = TokenBudget(lambda _: 100, lambda: now_s)
    reserved = budget.reserve("acme", 60)
    now_s += 2
    budget.give_back(reserved, 50)
    assert budget.reserve("acme", 50).tokens == 50
    with pytest.raises(ModelError, match="over_budget"):
        budget.reserve("acme", 1)


TRUE_OR_FALSE = fields(sufficient=TRUTH)
LIST = fields(questions=listed(TEXT))
TWO = fields(questions=listed(TEXT), confidence=NUMBER)

FENCES: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: f"```json\n{text}\n```",
    lambda text: f"```\r\n{text}\r\n```\n",
    lambda text: f"Here is the answer:\n\n```JSON\n{text}\n```\nI hope that helps.",
    lambda text: f"```json\n{text}",
]


@given(st.lists(st.text()), st.booleans(), st.sampled_from(FENCES))
def test_value_is_read_bare_and_in_a_fence(texts: list[str], truth: bool, fence: Callable[[str], str]) -> None:
    whole = {"questions": texts}
    for written in (whole, texts):
        assert read_answer(fence(json.dumps(written)), LIST) == whole
    for word in (json.dumps({"sufficient": truth}), json.dumps(truth), "YES" if truth else "no."):
        assert read_answer(fence(word), TRUE_OR_FALSE) == {"sufficient": truth}


@pytest.mark.parametrize(
    ("content", "schema"),
    [
        ("YES", LIST), ('["a"]', TRUE_OR_FALSE), ('["a"]', TWO), ("yes, and no", TRUE_OR_FALSE),
        ("maybe", TRUE_OR_FALSE), ("[1]", LIST), ('```json\n["a"]\n```\n```json\n["b"]\n```', LIST),
        ('["a"] is the answer', LIST), ("", LIST),
    ],
)  # fmt: skip
def test_other_answer_breaks_the_schema(content: str, schema: dict[str, object]) -> None:
    with pytest.raises(CallFailed) as failed:
        _checked(content, schema, Spent())
    assert failed.value.code == "malformed"
