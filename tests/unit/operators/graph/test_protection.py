"""What the quality gate protects, through the dataflow: answers, and the tenant over all of its state partitions."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.state.directory import StateDirectory
from recallflow.state.logical import state_hash
from tests.unit.operators.graph.harness import DAY_MS, rolled_out
from tests.unit.operators.harness import make_event, run_flow

THINGS = ("alarm", "backup", "camera", "dashboard", "elevator", "freezer", "gateway", "heater", "intercom", "joystick")
CAUSES = (
    "Ivan swapped both supply cables",
    "Nobody renewed that licence",
    "A squirrel lives above us",
    "Flooding reached floor minus two",
    "Someone unplugged everything overnight",
    "Winter tyres block our ramp",
)


@pytest.fixture
def logs() -> list[dict[str, Any]]:
    """Forty logs, six causes that share no word with them, and for each log the right edge."""
    return [
        *(
            make_event("memory", n, id=f"log{n}", content=f"The {THINGS[n % 10]} in hall {n // 10 + 1} failed to start")
            for n in range(40)
        ),
        *(make_event("memory", 100 + n, id=f"cause{n}", content=text) for n, text in enumerate(CAUSES)),
        make_event(
            "graph.edges",
            200,
            edges=[{"source": f"log{n}", "target": f"cause{n % 6}", "type": "caused_by"} for n in range(40)],
        ),
    ]


def test_right_edges_to_what_shares_no_word_are_never_blocked(logs: list[dict[str, Any]]) -> None:
    queries = [
        make_event(
            "recall",
            DAY_MS,
            query=f"Why did the {THINGS[n % 10]} in hall {n // 10 % 4 + 1} fail?",
            k=3,
            strategy="hybrid_graph",
        )
        for n in range(120)
    ]
    history = rolled_out()
    answers = run_flow([*logs, *queries], decisions=history, similarity_max_per_memory=0).responses
    assert {answer["fallback"] for answer in answers} == {None}
    assert history.names("acme", "gate.verdict") == []
    found = [{memory["id"] for memory in answer["memories"]} for answer in answers]
    assert all(f"cause{n % 40 % 6}" in ids for n, ids in enumerate(found))


def of_many_users(useful: bool) -> list[list[dict[str, Any]]]:
    """Twelve users, each with a memory that the graph adds to an answer. Each asks twice, and says of it whether it was
    useful: too little for any state partition to judge by, enough for all of them."""
    users = []
    for number in range(12):
        mine: dict[str, Any] = {"user_id": f"user-{number}"}
        told = [make_event("memory", n, id=f"x{n}", content=f"crate {n} is in shelf {n}", **mine) for n in range(12)]
        alarm = make_event("memory", 20, id="alarm", content="Rollout alarms page us", topics=["dashboard"], **mine)
        red = make_event("memory", 21, id="red", content="Grafana turns pale", topics=["dashboard"], **mine)
        asked = {"query": "rollout alarms", "k": 2, "strategy": "hybrid_graph"} | mine
        said = make_event("memory.feedback", DAY_MS, memory_id="red", useful=useful, **mine)
        users.append([*told, alarm, red, *[make_event("recall", DAY_MS, **asked), said] * 2])
    return users


@pytest.mark.parametrize("useful", [True, False])
def test_tenant_is_judged_by_all_its_state_partitions(useful: bool) -> None:
    history, users = rolled_out(), of_many_users(useful)
    status = [make_event("graph.status", DAY_MS, user_id=f"user-{number}") for number in range(12)]
    asked = make_event("recall", DAY_MS, query="rollout alarms", strategy="hybrid_graph", user_id="somebody else")
    events = [*(event for user in users for event in user), *status, asked]
    *answers, other = run_flow(events, partitions=16, decisions=history).responses
    gates = [answer["graph_status"]["gate"] for answer in answers[-12:]]
    assert len({orjson.dumps(gate) for gate in gates}) == 1  # whichever partition is asked
    assert gates[0]["windows"]["answers"] == 24
    assert gates[0]["blocked"] == (not useful)
    assert (gates[0]["windows"]["useful_added"], gates[0]["why"]) == (float(useful), None if useful else "harm_rate 1")
    assert other["fallback"] == (None if useful else "quality_gate_blocked")


def test_state_does_not_depend_on_the_judging_partitions(tmp_path: Path) -> None:
    events = [event for user in of_many_users(useful=False) for event in user]
    hashes, fallbacks = set(), set()
    for name, partitions, mode in (("few", 1, "canary"), ("many", 8, "canary"), ("off", 1, "off")):
        answers = run_flow(events, tmp_path / name, partitions, rolled_out(mode)).responses
        fallbacks |= {answer["fallback"] for answer in answers}
        with StateDirectory.existing(tmp_path / name, 1024 * 1024) as directory:
            hashes.add(state_hash(directory))
    assert fallbacks == {None, "quality_gate_blocked", "rollout_off"}
    assert len(hashes) == 1
