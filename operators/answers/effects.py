"""Effects of an answer, applied exactly once: usage counts, times and sessions of returned memories. They are committed
with the next event or at the next sync: a query alone does not write to disk.

A query may be answered again after a crash. Its mark then shows that its effects are stored, because effects and mark
are one atomic write. A repeated query id has no effects either; the owner's newest 64 ids are stored to detect it.

A query of a finite log needs no mark, because its position is stored with its effects. Other queries may be answered
long after their offset. Marks are therefore deleted by generation: the second barrier of the partition confirms that
the previous one is committed.
"""

from collections import deque
from collections.abc import Sequence

from recallflow.operators.events import Ask
from recallflow.operators.recall.stages import Effects
from recallflow.records import Position, Record
from recallflow.state import keys
from recallflow.state.hot_owner import HotOwner
from recallflow.state.partition import Partition, Values
from recallflow.state.usage import encode_seqs

RETURNED_MOST = 200  # the newest returned memories stored per session
IDS_MOST = 64
_ID_BYTES = 8


class Marks:
    """Marks of a partition's queries with stored effects."""

    def __init__(self, partition: Partition) -> None:
        """Load the stored marks. Marks of an earlier run join the current generation, because their age is unknown."""
        self._partition = partition
        # One generation per interval between barriers of the partition, the oldest first.
        self._generations = deque[dict[bytes, bytes]]([{}, {}, dict(partition.scan_readable(keys.EFFECTS))])

    def mark(self, record: Record) -> Values | None:
        """Mark the query. Return the record to store with its effects; None if they are stored already."""
        keyring, position = self._partition.keyring, record.position
        key = keys.effects(keyring.name(b"", position.source), position.offset)
        # The content is part of the mark, because a replaced input file may give the position to another query.
        content = keyring.digest(b"", record.value)
        for generation in self._generations:
            if generation.get(key) == content:
                return None
            generation.pop(key, None)
        self._generations[-1][key] = content
        return {key: content}

    def next_generation(self) -> Values:
        """Begin a generation. Return the deletions of the oldest one."""
        self._generations.append({})
        return dict.fromkeys(self._generations.popleft())


def stage_effects(
    partition: Partition,
    marks: Marks | None,
    hot: HotOwner,
    ask: Ask,
    effects: Effects,
    position: Position | None = None,
) -> None:
    """Stage the effects of an answer unless they are stored, with a `position` that becomes applied. `marks` is None if
    queries cannot come again."""
    staged = {} if marks is None else marks.mark(ask.record)
    if staged is None:
        return
    if effects.seqs and (ask.query.id is None or _is_new(partition, hot, ask.query.id, staged)):
        counted = hot.usage().count(effects.seqs, effects.at_ms)
        staged |= {keys.usage(hot.key, seq): record for seq, record in zip(effects.seqs, counted, strict=True)}
        if effects.session_id is not None:
            returned = _latest_last(hot.returned(effects.session_id).tolist(), effects.seqs)
            staged[keys.session(hot.key, hot.name(effects.session_id))] = encode_seqs(returned)
    partition.stage(staged, position, can_wait=True)


def _is_new(partition: Partition, hot: HotOwner, query_id: str, staged: Values) -> bool:
    """Return whether the query id is new among the owner's latest ones, and add it."""
    key, name = keys.asked(hot.key), hot.name(query_id)[:_ID_BYTES]
    known = partition.get(key) or b""
    if name in known:  # also across two ids: as unlikely as a hash collision
        return False
    staged[key] = (known + name)[-IDS_MOST * _ID_BYTES :]
    return True


def _latest_last(before: list[int], seqs: Sequence[int]) -> list[int]:
    """Return distinct values, the latest last."""
    again = set(seqs)
    return [*(seq for seq in before if seq not in again), *seqs][-RETURNED_MOST:]
