"""Which topic each output goes to."""

from recallflow.connectors.kafka.names import part_name
from recallflow.control import GateVerdict
from recallflow.decisions import parse_control
from recallflow.flows.topics import Router, Topics
from recallflow.outputs import Verdict
from recallflow.records import Position


def test_a_verdict_goes_where_operators_decisions_come_from() -> None:
    topics = Topics()
    event = GateVerdict(type="gate.verdict", tenant_id="acme", name="3", blocked=True, windows={"error_rate": 0.1})
    verdict = Verdict(Position(topics.queries, 0, 7), 2, 5, event)
    part, outgoing = Router(topics, lambda *_: 1).route(verdict)
    assert part == part_name(topics.control, 0)
    assert (outgoing.key, outgoing.source, outgoing.number) == (b"acme/gate.verdict/3", "query.events:0:7", 2)
    assert parse_control(outgoing.value) == event
