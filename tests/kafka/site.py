"""A running engine that the tests of a module share, with topics of the module's own; tests use users of their own."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fleet.engine import INPUTS, OUTPUTS, SHORT_SESSION, Engine, Topics
from tests.fleet.records import Log, Output, Reader, Sent, all_of
from tools.broker import Cluster

REPLY = "reply"


@dataclass
class Site:
    topics: Topics
    engine: Engine
    log: Log
    reader: Reader

    def user(self) -> str:
        return f"user-{uuid.uuid4().hex[:8]}"

    def tell(self, user: str, event_type: str = "memory", **fields: Any) -> Sent:
        sent = self.log.tell(user, event_type, **fields)
        self.log.flush()
        return sent

    def ask(self, user: str, event_type: str, **fields: Any) -> dict[str, Any]:
        return self.reader.answer(self.post(user, event_type, **fields).query_id)

    def post(self, user: str, event_type: str, **fields: Any) -> Sent:
        """Send a query, without waiting for its answer."""
        sent = self.log.ask(user, event_type, **fields)
        self.log.flush()
        return sent

    def raw(self, kind: str, value: bytes | None, **how: Any) -> Sent:
        sent = self.log.raw(kind, value, **how)
        self.log.flush()
        return sent

    def replies(self) -> list[Output]:
        return [output for output in self.reader.outputs if output.kind == REPLY]

    def servers(self) -> list[str]:
        return ["--bootstrap-servers", self.topics.cluster.bootstrap_servers]

    def check_nothing_twice(self) -> None:
        marks = "recallflow-replayed"  # header of marks next to replayed dead letters
        outputs = [(one.kind, one.answers) for one in all_of(self.topics) if not one.header(marks)]
        assert len(outputs) == len({*outputs})


def start_site(broker: Cluster, folder: Path, partitions: int) -> Iterator[Site]:
    topics = Topics(broker)
    for kind in (*INPUTS, *OUTPUTS, REPLY):
        topics.make_one(kind, partitions)
    options = ("--sync-ms", "100", *SHORT_SESSION, "--reply-topic", topics.of(REPLY))
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(topics, folder, *options))
        reader = stack.enter_context(closing(Reader(topics, (*OUTPUTS, REPLY))))
        engine.up()
        yield Site(topics, engine, Log(topics), reader)
