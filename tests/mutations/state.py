"""The engine from the verdict on, in this process: records in, what is sent out of it, and what is stored of whom."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.kafka.admin import UNKNOWN_BYTES
from recallflow.connectors.kafka.messages import Outgoing
from recallflow.control import ControlHistory
from recallflow.flows.router import Router
from recallflow.flows.settings import Settings, TopicNames
from recallflow.operators.events import Batch, Item
from recallflow.operators.prepare import prepare
from recallflow.operators.step import Clocks, StateStep
from recallflow.outputs import Done, Output
from recallflow.owner import Owner
from recallflow.records import Mark
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.state_hash import digests

TOPICS = TopicNames(memory="memories", queries="queries")
SETTINGS = Settings(partitions=1)
REPLIES = {TOPICS.responses: 1}
_PACKED = (keys.SEGMENT, keys.REACH, keys.RENEWED)  # made of the others, whenever there is time
_MARK_BATCHES = 10


class State:
    """A state directory of one partition, with the step that works on it."""

    def __init__(self, path: Path, decisions: ControlHistory) -> None:
        self.now_ms = 0
        self._embedder = load_embedder(SETTINGS.embedder)
        fingerprint = SETTINGS.fingerprint(self._embedder)
        self._directory = StateDirectory.open(path, fingerprint, SETTINGS.cache_bytes)
        rules = SETTINGS.rules(self._embedder, TOPICS.queries, REPLIES, input_ends=False, decisions=decisions)
        clocks = Clocks(timer=lambda: 0.0, now_ms=lambda: self.now_ms)
        self._step = StateStep.opener(self._directory, self._embedder, rules, clocks)(0)
        self._router = Router(
            TOPICS, dict.fromkeys(TOPICS.written(), 1), dict.fromkeys(TOPICS.written(), UNKNOWN_BYTES)
        )
        self._batches = 0

    def apply(self, items: Sequence[Item]) -> list[tuple[Output, Outgoing]]:
        outputs = self._step.take([Batch(0, prepare(self._embedder, [*items]))])
        self._batches += 1
        if self._batches % _MARK_BATCHES == 0:
            self._step.mark(Mark(0, self._batches))
        return self._sent(outputs)

    def finish(self) -> list[tuple[Output, Outgoing]]:
        outputs: list[Output] = []
        while self._step.due_ms() is not None:
            self.now_ms += 60_000
            outputs += self._step.advance()
        return self._sent(outputs)

    def stored(self) -> dict[Owner, str]:
        """A digest of what is held of each owner, as events made it."""
        found: dict[Owner, list[bytes]] = defaultdict(list)
        for owner, digest in digests(self._directory.partition(0)):
            found[owner].append(digest)
        return {owner: hashlib.sha256(b"".join(sorted(own))).hexdigest() for owner, own in found.items()}

    def raw(self, owner: Owner) -> str:
        """A digest of all that is stored of an owner, byte by byte: of what queries cause, too."""
        partition = self._directory.partition(0)
        prefix = keys.OWNERS + partition.keyring.owner(owner)
        found = hashlib.sha256()
        for key, value in partition.scan(prefix):
            if keys.split(key)[1] not in _PACKED:
                found.update(hashlib.sha256(key).digest() + hashlib.sha256(value).digest())
        return found.hexdigest()

    def close(self) -> None:
        del self._step
        self._directory.close()

    def _sent(self, outputs: list[Output]) -> list[tuple[Output, Outgoing]]:
        fitted = [self._router.fitted(output) for output in outputs if not isinstance(output, Done)]
        return [(output, self._router.route(output).outgoing) for output in fitted if not isinstance(output, Done)]
