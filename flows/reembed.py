"""Re-embedding: the search for memories without a vector of a new model, and the computation of these vectors.

The memory topic is replayed into a temporary state directory, as an engine with the new model would read it. Therefore,
vectors are only computed for current texts, not for changed, forgotten or erased ones, and not for texts that have a
vector of the model. The replay uses as much memory as an engine, and as much disk as its state.

The text of a misrouted record is embedded only after an engine has forwarded the record. A vector that is sent earlier
would precede its memory in the log, and an engine would skip the vector."""

import asyncio
import contextlib
import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import orjson

from recallflow.connectors.kafka.control import ControlTable
from recallflow.connectors.kafka.messages import record_of, size_bytes, time_ms
from recallflow.connectors.kafka.sender import Publisher
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.embedder import Embedder, Matrix, TokenCounter
from recallflow.errors import EmbedderError, ModelError, RecallflowError
from recallflow.events import content_hash, embedding_input
from recallflow.flows.admission import known_secrets, trust_of
from recallflow.flows.config import Config
from recallflow.flows.embedded import EmbeddedEngine, StateLoop
from recallflow.flows.router import deployment_name
from recallflow.flows.settings import Settings, open_at_rest
from recallflow.flows.topic_checks import committed_partition_count, topics_with_append_time
from recallflow.kafka_options import KafkaOptions
from recallflow.llm import TEXT_FAILURES, EmbeddingService
from recallflow.operators.async_call import Runtime
from recallflow.operators.authorise import Authoriser
from recallflow.operators.events import Decoded, Item, Misrouted, Refused, Write, decode, partition_by_owner
from recallflow.operators.quotas import Rates
from recallflow.operators.rules import Rules
from recallflow.owner import Owner
from recallflow.records import Position, Record
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.partition import Partition
from recallflow.state.rows import Entry, MemoryRow
from recallflow.state.state_hash import owners

BATCH_RECORDS, BATCH_BYTES = 500, 8 * 1024 * 1024  # limits of a batch of records
ROWS_PER_READ = 32  # a row may be as large as a record
READER_SETTINGS = {"queued.max.messages.kbytes": 2 * 1024}  # per partition
FLUSH_TEXTS = 256  # texts between two flushes; at most these are paid twice after a crash
CALL_TEXTS = 64
CONCURRENT_CALLS = 4
REFUSED_TEXTS_MAX = 8  # as many refused texts without any accepted one mean that the settings are wrong, not the texts

T = TypeVar("T")
Progress = Callable[[int], object]  # receives the number of newly processed items


class TextToEmbed(NamedTuple):
    owner: Owner
    memory_id: str
    text: str
    content_hash: str


@dataclass
class ReembeddingCost:
    texts: int = 0
    characters: int = 0
    tokens: int = 0
    refused: int = 0  # events with vectors of another dimension, which an engine with this model would refuse
    misrouted: int = 0  # misrouted records that were not forwarded yet


class MemoryTopicReplay:
    """The state after all records of the memory topic, for an engine with the model. Outputs are discarded."""

    def __init__(
        self, directory: StateDirectory, embedder: Embedder, rules: Rules, authorise: Callable[[Decoded], Item]
    ) -> None:
        self.refused: Counter[str] = Counter()  # refused records, by error code
        self.misrouted: set[Position] = set()  # misrouted records that were not forwarded yet
        self.directory, self._authorise, self._skips = directory, authorise, rules.skips
        self._partition_of = partial(partition_by_owner, partitions=directory.fingerprint.partitions)
        engine = EmbeddedEngine(directory, embedder, Settings(), is_temporary=True)
        self._loop = StateLoop(engine, rules, decode=self._decode, complete=self._writes)

    @classmethod
    @contextlib.contextmanager
    def read(cls, config: Config, embedder: Embedder, total: Progress, progress: Progress) -> Iterator[Self]:
        """Replay the topic into a temporary directory. `total` receives the number of records. Raise SourceError."""
        topic = config.topics.memory
        with contextlib.ExitStack() as stack:
            with TopicReader(config.kafka, {"group.id": deployment_name(config, topic)}) as reader:
                offset_ranges = reader.spans([topic])
                committed = committed_partition_count(reader, topic, len(offset_ranges))
            settings = replace(config.engine, partitions=len(offset_ranges) if committed is None else committed)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recallflow-reembed-")))
            fingerprint, at_rest = settings.fingerprint(embedder), open_at_rest(config.encryption)
            state = StateDirectory.open(folder / "state", fingerprint, settings.cache_bytes, at_rest=at_rest)
            directory, secret = stack.enter_context(state), config.auth.control_secret
            with contextlib.closing(ControlTable(config.kafka, config.topics.control, secret=secret)) as table:
                decisions = table.history
            rules = replace(settings.rules(embedder, decisions=decisions), skips=config.skips)
            authoriser = Authoriser(decisions, trust_of(config.auth, known_secrets(config.auth)))
            authoriser.warn()
            rates = Rates(decisions, config.topics.queries, topics_with_append_time(config.kafka, [topic]))
            replay = cls(directory, embedder, rules, lambda item: rates.judge(authoriser.authorise(item)))
            total(sum(high - low for low, high in offset_ranges.values()))
            for messages in _batches(_merged(config.kafka, offset_ranges)):
                replay.apply(messages)
                progress(len(messages))
            yield replay

    def apply(self, messages: Sequence[Any]) -> None:
        self._loop.apply([record_of(message) for message in messages])

    def _decode(self, record: Record) -> Item:
        item = decode(record, self._skips)
        if isinstance(item, Refused) or record.position.partition == self._partition_of(item):
            self.misrouted.discard(record.original_position)
            return self._authorise(item)
        self.misrouted.add(record.position)
        return Misrouted(record, item.owner, self._partition_of(item))

    def _writes(self, prepared: Sequence[Item]) -> list[Item]:
        self.refused.update(item.error.code for item in prepared if isinstance(item, Refused))
        return [item for item in prepared if isinstance(item, Write)]

    def missing(self) -> Iterator[TextToEmbed]:
        for partition in self.directory.existing_partitions():
            for key, head in owners(partition):
                yield from _missing_of(partition, key, head.owner)

    def cost(self, counter: TokenCounter) -> ReembeddingCost:
        found = ReembeddingCost(refused=self.refused["wrong_dimension"], misrouted=len(self.misrouted))
        for one in self.missing():
            found.texts += 1
            found.characters += len(one.text)
            found.tokens += counter.count_tokens(one.text)
        return found


def _merged(options: KafkaOptions, offset_ranges: Mapping[tuple[str, int], tuple[int, int]]) -> Iterator[Any]:
    """Yield the messages of all partitions by append time: an owner's vectors may be in another partition."""
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(TopicReader(options, READER_SETTINGS, decodes=True)).read_to_end(*partition, low)
            for partition, (low, _) in offset_ranges.items()
        ]
        yield from heapq.merge(*streams, key=time_ms)


def _batches(messages: Iterable[Any]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    batch_bytes = 0
    for message in messages:
        batch.append(message)
        batch_bytes += size_bytes(message)
        if len(batch) == BATCH_RECORDS or batch_bytes >= BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _missing_of(partition: Partition, key: bytes, owner: Owner) -> Iterator[TextToEmbed]:
    entries = (Entry.decode(value) for _, value in partition.scan(keys.table(key, keys.ENTRY)))
    for some in _chunks(entries, ROWS_PER_READ):
        stored = partition.get_many([keys.vectors(key, entry.seq) for entry in some])
        missing = [entry for entry, vectors in zip(some, stored, strict=True) if vectors is None]
        rows = [keys.row(key, partition.keyring.name(key, entry.id), entry.version) for entry in missing]
        for value in partition.get_many(rows):
            row = None if value is None else MemoryRow.decode(value)
            if row is not None and row.content and not row.content.isspace():
                yield TextToEmbed(owner, row.id, embedding_input(row.author, row.content), content_hash(row.content))


@dataclass
class Reembedding:
    """The computation of vectors. Each vector is sent as a `memory.embedding` event."""

    service: EmbeddingService
    runtime: Runtime
    has_vectors: bool = False  # the topic has vectors of the model, so a failure is due to a text, not to the settings
    written: int = 0  # the number of sent vectors
    refused: int = 0  # the number of texts that the service refused
    _accepted: int = 0  # the number of texts that it embedded

    def run(self, texts: Iterator[TextToEmbed], publisher: Publisher, progress: Progress) -> None:
        """Compute and send the vectors of texts. Raise RecallflowError if the service fails permanently, EmbedderError
        if the first vectors have another dimension, and SinkError."""
        for some in _chunks(texts, FLUSH_TEXTS):
            try:
                vectors = self.runtime.run(self._embed_all(some))
            except ModelError as error:
                raise RecallflowError(
                    f"{self.service.name} gave no more vectors ({error}); {self.written:,} are written. "
                    "Run the same command again: it resumes where it stopped"
                ) from error
            for text, vector in zip(some, vectors, strict=True):
                if vector is not None:
                    publisher.send(text.owner.record_key, _event(text, self.service.name, vector))
                    self.written += 1
            publisher.flush()  # before further calls are paid for
            progress(len(some))

    async def _embed_all(self, texts: Sequence[TextToEmbed]) -> list[Matrix | None]:
        """Return the vector of each text; None for a text that the service refuses."""
        by_tenant: dict[str, list[int]] = {}
        for at, text in enumerate(texts):
            by_tenant.setdefault(text.owner.tenant_id, []).append(at)
        calls = [call for indices in by_tenant.values() for call in _chunks(indices, CALL_TEXTS)]
        slots = asyncio.Semaphore(CONCURRENT_CALLS)
        vectors: list[Matrix | None] = [None] * len(texts)

        async def embed(call: Sequence[int]) -> None:
            async with slots:
                for at, vector in zip(call, await self._embed([texts[at] for at in call]), strict=True):
                    vectors[at] = vector

        await asyncio.gather(*map(embed, calls))
        return vectors

    async def _embed(self, texts: Sequence[TextToEmbed]) -> list[Matrix | None]:
        """Return the vectors of one call. If the service refuses the call, send each text separately."""
        result = await self._call(texts)
        if not isinstance(result, ModelError):
            return [*result]
        refused_max = REFUSED_TEXTS_MAX if self.has_vectors else min(REFUSED_TEXTS_MAX, len(texts))
        vectors: list[Matrix | None] = []
        for text in texts:
            try:
                one = await self._call([text])
            except ModelError as error:  # `left_alone`: the circuit breaker is open because of the first error
                raise (result if error.code == "left_alone" else error) from None
            if not isinstance(one, ModelError):
                vectors.extend(one)
                continue
            self.refused += 1
            if not self._accepted and self.refused >= refused_max:
                raise one
            vectors.append(None)
        return vectors

    async def _call(self, texts: Sequence[TextToEmbed]) -> Matrix | ModelError:
        """Return the vectors of texts, or the error of a call that the service refused."""
        try:
            vectors = (await self.service.embed(texts[0].owner.tenant_id, [one.text for one in texts])).vectors
        except ModelError as error:
            if error.code in TEXT_FAILURES:
                return error
            raise
        except EmbedderError as error:
            if self.has_vectors:
                return ModelError("malformed", str(error))
            raise
        self._accepted += len(texts)
        return vectors


def _chunks(values: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(values)
    return iter(lambda: [*islice(remaining, size)], [])


def _event(text: TextToEmbed, model: str, vector: Matrix) -> bytes:
    computed = {"embedding": vector, "model": model, "content_hash": text.content_hash}
    fields = {"type": "memory.embedding", **text.owner._asdict(), "memory_id": text.memory_id, **computed}
    return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
