"""The topics of a deployment, and which of them each output goes to."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from recallflow.connectors.kafka.names import part_name
from recallflow.connectors.kafka.partitioner import partition_of
from recallflow.connectors.kafka.sink import Headers, Outgoing
from recallflow.errors import UsageError
from recallflow.outputs import Answer, DeadLetter, Receipted, Verdict
from recallflow.records import Position

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAMED = "letters, digits, dots, underscores and hyphens, at most 249"
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

    def __post_init__(self) -> None:
        inputs = self.read()
        names = (*inputs, self.enrichment, *self.outputs())
        if wrong := sorted({name for name in names if not _NAME.fullmatch(name) or name in (".", "..")}):
            raise UsageError(f"no topic name: {', '.join(map(repr, wrong))}; give {_NAMED}")
        # What is read must not be what is written, nor one topic be read for another.
        if twice := sorted({name for name in inputs if names.count(name) > 1}):
            raise UsageError(f"{', '.join(twice)}: memories, queries and control events need topics of their own")

    def read(self) -> tuple[str, ...]:
        """Every topic the main flow reads."""
        return self.memory, self.queries, self.control

    def outputs(self) -> tuple[str, ...]:
        """Every topic that only the main flow writes to."""
        return (self.responses, self.receipts, self.dead_letters, *self.replies)

    def written(self) -> tuple[str, ...]:
        """Every topic the main flow writes to: what quality gates say goes where operators' decisions come from."""
        return (*self.outputs(), self.control)


class Router:
    """Outputs → what is sent where. Everything about one owner goes to one partition, in order."""

    def __init__(self, topics: Topics, partitions: Callable[[str, Position], int]) -> None:
        """`partitions`: how many of a topic are used for what comes of the record at a position."""
        self._topics = topics
        self._partitions = partitions

    def route(self, output: Answer | Receipted | DeadLetter | Verdict) -> tuple[str, Outgoing]:
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
            case Verdict():
                topic, partition = self._topics.control, None
                outgoing = self._outgoing(output, output.key, output.body)
        if partition is None:
            key = outgoing.key if outgoing.key is not None else outgoing.source.encode()
            partition = partition_of(key, self._partitions(topic, output.position))
        return part_name(topic, partition), outgoing

    def _outgoing(
        self, output: Answer | Receipted | DeadLetter | Verdict, key: bytes | None, value: bytes, headers: Headers = ()
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
