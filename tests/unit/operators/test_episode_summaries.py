"""Given summaries of episodes are shown as long as the messages are unchanged."""

from typing import Any

import pytest

from recallflow.operators.episodes import episode_id
from recallflow.owner import Owner
from tests.unit.operators.test_apply import codes, forget, message, outcomes, update
from tests.unit.operators.test_derived import do, of

Event = tuple[str, dict[str, Any]]

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
TOLD = "Ann plans a trip"


def said(memory_id: str, content: str = "We go to Lisbon in May", **fields: Any) -> Event:
    return message(memory_id, content, session_id="s", **fields)


def summary(opener: str = "a", *sources: str, text: str = TOLD, **fields: Any) -> Event:
    derived = of(sources[0], None, *sources[1:]) if sources else {}
    named = episode_id(Owner("acme", "prod", "ann"), "s", opener)
    return "episode.summary", {"episode_id": named, "summary": text, "session_id": "s", **derived, **fields}


LISTED: Event = ("episodes.list", {"session_id": "s"})
ASKED: Event = ("recall", {"query": "Lisbon", "mode": "episode"})


def summaries(response: dict[str, Any]) -> list[str]:
    return [one["summary"] for one in response["episodes"]]


@pytest.mark.parametrize("asked", [LISTED, ASKED], ids=["listed", "ranked"])
@pytest.mark.parametrize("sources", [(), ("a",), ("a", "b")], ids=["told", "of one", "of both"])
def test_given_summary_is_shown_instead_of_sentences(asked: Event, sources: tuple[str, ...]) -> None:
    done = do(said("a"), said("b", "Good"), asked, summary("a", *(sources or ())), asked)
    expected = "outdated" if sources == ("a",) else "updated"  # made before the last message came
    assert outcomes(done)[2:] == [expected]
    extractive, now = map(summaries, done.responses)
    assert now == (extractive if expected == "outdated" else [TOLD])


@pytest.mark.parametrize("asked", [LISTED, ASKED], ids=["listed", "ranked"])
@pytest.mark.parametrize(
    "event",
    [said("late"), said("early", timestamp=30_000), forget(memory_id="b"), update("b", content="Porto it is")],
    ids=["another message", "a late message", "forgotten", "edited"],
)
def test_summary_is_dropped_when_the_episode_changes(asked: Event, event: Event) -> None:
    done = do(said("a"), said("b"), summary("a", "a", "b"), asked, event, asked)
    first, second = map(summaries, done.responses)
    assert first == [TOLD]
    assert len(second) == 1
    assert TOLD not in second


@pytest.mark.parametrize(
    "event",
    [update("b", tags=["a"]), ("episode.end", {"session_id": "s"}), ("memory", {"content": "x", "session_id": "s"})],
    ids=["tagged", "ended", "a fact"],
)
def test_summary_stays_while_messages_are_unchanged(event: Event) -> None:
    done = do(said("a"), said("b"), summary("a", "a", "b"), event, LISTED)
    assert summaries(done.responses[0]) == [TOLD]


def test_summary_is_dropped_when_episodes_merge() -> None:
    far = said("b", timestamp=MINUTE_MS * 40)
    done = do(
        said("a"), far, summary("a"), summary("b", text="more"), LISTED, said("c", timestamp=MINUTE_MS * 20), LISTED
    )
    before, after = map(summaries, done.responses)
    assert sorted(before) == [TOLD, "more"]
    assert len(after) == 1
    assert after[0] not in (TOLD, "more")


def test_summary_of_an_unknown_episode_is_refused_or_outdated() -> None:
    done = do(
        said("a"), summary("nobody"), summary("nobody", "a"), message("other", "x", session_id="t"),
        summary("a", "other"),
    )  # fmt: skip
    assert codes(done) == [("not_found", ["episode_id"])]
    assert outcomes(done) == ["created", "outdated", "created", "outdated"]


@pytest.mark.parametrize(
    ("as_of", "shown"),
    [
        ({"event_time": MINUTE_MS + 1}, True),
        ({"event_time": MINUTE_MS - 1}, False),
        ({"ingestion_time": MINUTE_MS}, False),
    ],
)
def test_past_answer_shows_a_summary_only_if_complete_then(as_of: dict[str, int], shown: bool) -> None:
    kind, fields = ASKED
    done = do(said("a"), said("b"), summary("a", "a", "b"), (kind, fields | {"as_of": as_of}))
    assert (summaries(done.responses[0]) == [TOLD]) == shown
