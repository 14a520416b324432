"""Which memories come from a chat with an assistant, and which from chats of two people."""

from collections.abc import Sequence

import pytest

from recallflow.state.index import OwnerIndex
from tests.unit.operators.harness import make_entry

Said = tuple[str | None, str | None, str | None]  # session, author, role

ANN, BO, CY = ("Ann", "user"), ("Bo", "user"), ("Cy", "user")
USER, BOT, FACT = ("user", "user"), ("assistant", "assistant"), (None, None)


def index_of(said: Sequence[Said]) -> OwnerIndex:
    index = OwnerIndex("model", 2)
    index.add(
        [
            make_entry(seq, episode=0, created_ms=seq, session_id=session, author=author, role=role)
            for seq, (session, author, role) in enumerate(said)
        ],
        {},
    )
    return index


def chat(session: str | None, *speakers: tuple[str | None, str | None]) -> list[Said]:
    return [(session, author, role) for author, role in speakers]


@pytest.mark.parametrize(
    ("said", "with_assistant", "of_two"),
    [
        (chat("s", USER, BOT), [1, 1], [0, 0]),
        (chat("s", ANN, BO), [0, 0], [1, 1]),
        (chat("s", ANN, BO, CY), [0, 0, 0], [0, 0, 0]),
        (chat("s", ANN, BO, BOT), [0, 0, 0], [1, 1, 1]),  # two people, who let a bot listen
        (chat("s", USER, USER), [1, 1], [0, 0]),  # notes
        (chat(None, FACT, FACT), [1, 1], [0, 0]),
        (chat("s", USER) + chat("t", USER), [1, 1], [0, 0]),
        (chat("s", ANN) + chat("t", BO), [0, 0], [1, 1]),  # neither session tells, both do
        (chat("s", ANN, BO) + chat("t", ANN) + chat(None, FACT), [0, 0, 0, 0], [1, 1, 1, 1]),
        (chat("s", USER, BOT) + chat("t", USER) + chat(None, FACT), [1, 1, 1, 1], [0, 0, 0, 0]),
        (chat("s", ANN, BOT) + chat("t", ANN, BO), [1, 1, 0, 0], [0, 0, 1, 1]),  # each session for itself
        (chat("s", ANN, BOT) + chat("t", ANN, BO, BO) + chat(None, FACT), [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1]),
    ],
)
def test_a_session_tells_by_who_speaks_in_it(said: list[Said], with_assistant: list[int], of_two: list[int]) -> None:
    index = index_of(said)
    by_arrival = index.conversation.places
    assert index.with_assistant[by_arrival].tolist() == [bool(one) for one in with_assistant]
    assert index.of_two[by_arrival].tolist() == [bool(one) for one in of_two]


def test_what_is_added_is_told_anew() -> None:
    index = index_of(chat("s", USER))
    assert index.with_assistant.all()
    index.add([make_entry(1, episode=0, created_ms=1, session_id="s", author="Bo", role="user")], {})
    assert not index.with_assistant.any()
    assert OwnerIndex("model", 2).with_assistant.tolist() == []
