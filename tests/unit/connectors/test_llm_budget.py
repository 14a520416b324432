"""What tenants may spend: a law, whatever is under way at once and whatever it costs."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.llm.policy import DAY_S, Budget, Reserved
from recallflow.errors import ModelError

LIMITS = {"acme": 100, "globex": 30, "free": None}
TENANTS = st.sampled_from([*LIMITS])


@given(st.lists(st.tuples(TENANTS, st.integers(0, 60), st.floats(0, 1), st.integers(0, 3), st.booleans())))
def test_no_tenant_spends_more_than_its_limit_in_a_day(calls: list[tuple[str, int, float, int, bool]]) -> None:
    """Each call reserves its tokens and costs a share of them; some end at once, others when so many more have begun,
    maybe the next day."""
    now_s = 0.0
    budget = Budget(LIMITS.get, lambda: now_s)
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
    budget = Budget(lambda _: 100, lambda: now_s)
    reserved = budget.reserve("acme", 60)
    now_s += 2
    budget.give_back(reserved, 50)
    assert budget.reserve("acme", 50).tokens == 50
    with pytest.raises(ModelError, match="over_budget"):
        budget.reserve("acme", 1)
