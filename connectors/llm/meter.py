"""What calls of one model cost, for whoever watches. Written on the loop thread, read on any."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from recallflow.errors import ModelFailure
from recallflow.llm import Spent, Task

TENANTS_NAMED = 100
OTHERS = "other"
CHARACTERS_PER_TOKEN = 4


class Meter:
    """Counts since the start. Tenants are shown by name up to a number of them, as each is a series of metrics; the
    rest are `other` together."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.left_alone = False  # it failed so often that it is not asked, or but tried
        self._spent: defaultdict[tuple[str, Task], Spent] = defaultdict(Spent)
        self._failures: Counter[tuple[Task, ModelFailure]] = Counter()
        self._named: set[str] = set()

    def spend(self, tenant_id: str, task: Task, spent: Spent) -> None:
        """Counts attempts, those that failed included."""
        if len(self._named) < TENANTS_NAMED:
            self._named.add(tenant_id)
        shown = tenant_id if tenant_id in self._named else OTHERS
        self._spent[shown, task] = self._spent[shown, task].plus(spent)

    def fail(self, task: Task, code: ModelFailure) -> None:
        """Counts a call that gave nothing in the end."""
        self._failures[task, code] += 1

    def spent(self) -> dict[tuple[str, Task], Spent]:
        """By tenant and task."""
        return dict(self._spent)

    def failures(self) -> dict[tuple[Task, ModelFailure], int]:
        """By task and reason."""
        return dict(self._failures)


def estimate_tokens(*texts: str) -> int:
    """About how many a service will count."""
    return sum(map(len, texts)) // CHARACTERS_PER_TOKEN


def counted(answer: Mapping[str, Any], kind: str, estimate: int) -> int:
    """What a service says that it counted; the estimate where it does not say."""
    usage = answer.get("usage")
    tokens = usage.get(kind) if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and tokens >= 0 else estimate
