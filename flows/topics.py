"""The topics of a deployment, and which of them each output goes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from recallflow.connectors.kafka.names import part_name
from recallflow.connectors.kafka.partitioner import partition_of
from recallflow.connectors.kafka.sink import Headers, Outgoing
from recallflow.outputs import Answer, DeadLetter, Receipted

RESPONSE_BYTES = 900_000  # under the broker's 1 MiB a record, with room for key and headers


@dataclass(frozen=True)
class Topics:
    """Topic names. `replies`: further topics that a query may name in `reply_to`."""

    memory: str = "memory.events"
    queries: str = "query.events"
    control: str = "control.events"
    responses: str = "recall.responses"
    receipts: str = "memory.receipts"
    enrichment: str = "enrichment.requests"
    dead_letters: str = "dead.letters"
    replies: tuple[str, ...] = field(default=())

    def outputs(self) -> tuple[str, ...]:
        """Every topic the main flow writes to."""
        return (self.responses, self.receipts, self.dead_letters, *self.replies)


class Router:
    """Outputs → what is sent where. Everything about one owner goes to one partition, in order."""

    def __init__(self, topics: Topics, partitions: Mapping[str, int]) -> None:
        self._topics = topics
        self._partitions = partitions

    def route(self, output: Answer | Receipted | DeadLetter) -> tuple[str, Outgoing]:
        """The sink part an output goes to, and the record to send."""
        match output:
            case Answer():
                reply = output.reply_to
                topic = reply.topic if reply is not None else self._topics.responses
                partition = reply.partition if reply is not None else None
                outgoing = self._outgoing(output, output.key, _fitted(output.body))
            case Receipted():
                topic, partition = self._topics.receipts, None
                outgoing = self._outgoing(output, output.key, output.body)
            case DeadLetter():
                topic, partition = self._topics.dead_letters, None
                outgoing = self._outgoing(output, output.record.key, output.record.value, error_headers(output))
        if partition is None:
            key = outgoing.key if outgoing.key is not None else outgoing.source.encode()
            partition = partition_of(key, self._partitions[topic])
        return part_name(topic, partition), outgoing

    def _outgoing(
        self, output: Answer | Receipted | DeadLetter, key: bytes | None, value: bytes, headers: Headers = ()
    ) -> Outgoing:
        return Outgoing(str(output.position), output.number, key, value, headers)


def error_headers(letter: DeadLetter) -> Headers:
    """The record's own headers, and why it was refused. The time is the record's, so that a replay says the same."""
    told = {
        "error.code": letter.error.code,
        "error.detail": str(letter.error)[:2_000],
        "error.step": letter.step,
        "error.source": str(letter.position),
        "error.time": str(letter.record.append_ms),
    }
    return (*letter.record.headers, *((name, value.encode()) for name, value in told.items()))


def _fitted(body: bytes) -> bytes:
    """A response that a broker takes: contents are cut from the last rank up, with a warning."""
    if len(body) <= RESPONSE_BYTES:
        return body
    response = orjson.loads(body)
    over = len(body) - RESPONSE_BYTES
    for memory in reversed(response.get("memories", [])):
        content = memory["content"].encode()
        kept = content[: max(0, len(content) - over - 200)].decode(errors="ignore")
        over -= len(content) - len(kept.encode())
        memory["content"] = kept
        if over <= 0:
            break
    warning = {"code": "content_cut", "detail": "contents were shortened from the last rank up to fit the topic"}
    response["warnings"] = [*response.get("warnings", []), warning]
    return orjson.dumps(response)
