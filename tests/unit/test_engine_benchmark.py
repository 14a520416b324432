"""What users say in the benchmark of the engine."""

from collections import defaultdict
from datetime import UTC, datetime

import orjson

from benchmarks.engine import events
from benchmarks.locomo import Conversation, Turn

TEXTS, USERS = 60, 4


def told(count: int, repeated: float = 0.0) -> list[list[str]]:
    """What each user says, in turn: of 60 texts, each of which stands twice in the conversations."""
    begin = datetime(2026, 5, 1, tzinfo=UTC)
    turns = [Turn(f"t{n}", "s", begin, "Ann", f"text {n % TEXTS}") for n in range(2 * TEXTS)]
    said: dict[str, list[str]] = defaultdict(list)
    for line in events([Conversation("c", turns, [])], count, USERS, repeated=repeated):
        event = orjson.loads(line)
        said[event["user_id"]].append(event["content"])
    return [*said.values()]


def test_no_user_says_a_thing_twice_while_there_are_others() -> None:
    for texts in told(USERS * TEXTS):
        assert len(set(texts)) == TEXTS


def test_users_do_not_say_the_same_at_one_time() -> None:
    for at_once in zip(*told(USERS * TEXTS), strict=True):
        assert len(set(at_once)) == USERS


def test_a_share_is_said_before_where_that_is_asked_for() -> None:
    for texts in told(USERS * 50, repeated=2 / 5):
        assert (len(texts), len(set(texts))) == (50, 30)
