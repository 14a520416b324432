"""A place in the group, on a real broker."""

import signal
import time
from collections.abc import Callable

import pytest

from benchmarks.broker import Cluster
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.group import Fenced, Group, Member
from tests.kafka.harness import watched
from tests.starts import fork_server

SESSION_S = 6.0
GIVE_UP_S = 60.0
CHILD = """
import sys
from recallflow.connectors.kafka.group import Fenced, Group
from recallflow.brokers.options import KafkaOptions

servers, name, topic, session_s = sys.argv[1:]
member = Group(KafkaOptions(servers), name, topic, float(session_s)).join()
print("in", flush=True)
came_back = 0
while came_back < 20:
    try:
        member.committed(0.1)
        came_back += member.lost  # the client may learn of it first, or see by itself how long it was away
    except Fenced:
        came_back += 1
print("through", flush=True)
"""


@pytest.fixture
def place(broker: Cluster, topics: Callable[[str], str]) -> tuple[str, str, str]:
    """Where a group is: brokers, its name, a topic."""
    topic = topics("memory.events")
    broker.create_topics({topic: 2})
    return broker.bootstrap_servers, topics("group"), topic


def group_at(place: tuple[str, str, str]) -> Group:
    return Group(KafkaOptions(place[0]), place[1], place[2], SESSION_S)


def is_accepted(member: Member, note: str) -> bool:
    member.commit(note)
    deadline_s = time.monotonic() + GIVE_UP_S
    while (accepted := member.committed(0.1)) is None:
        assert time.monotonic() < deadline_s
    return accepted


def test_the_last_one_to_join_is_in_and_the_others_learn_of_it(place: tuple[str, str, str]) -> None:
    group = group_at(place)
    assert tuple(group.look()) == (None, None)
    first = group.join()
    assert is_accepted(first, "one")
    second = group.join()
    assert second.note() == "one"
    assert is_accepted(second, "two")
    with pytest.raises(Fenced):
        is_accepted(first, "one again")
    assert tuple(group.look()) == ("two", second.name)
    first.close()
    second.close()


def test_who_comes_back_after_its_session_puts_nobody_out(place: tuple[str, str, str]) -> None:
    child = fork_server().start(CHILD, [*place, str(SESSION_S)], text=True)
    with watched(child):
        assert child.stdout is not None
        assert child.stdout.readline() == "in\n"
        child.send_signal(signal.SIGSTOP)
        group = group_at(place)
        deadline_s = time.monotonic() + GIVE_UP_S
        while group.look().member is not None:
            assert time.monotonic() < deadline_s
        member = group.join()
        child.send_signal(signal.SIGCONT)
        while child.poll() is None:
            assert time.monotonic() < deadline_s
            assert member.committed(0.1) is None
        assert child.stdout.readline() == "through\n"
        assert is_accepted(member, "still in")
        member.close()
