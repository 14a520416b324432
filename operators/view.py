"""What one event may read and change: the owner's records, and a list of effects that counts only as a whole."""

from recallflow.operators.events import Write
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.hot_owner import HotOwner
from recallflow.state.partition import Partition
from recallflow.state.rows import Current, Entry, Episode, Head, MemoryRow, Vectors


class View:
    """One event's view of its owner. Nothing it changes is seen by others before `keep`, so that an event that fails
    half-way leaves no trace."""

    def __init__(self, partition: Partition, hot: HotOwner, write: Write) -> None:
        self._partition = partition
        self._hot = hot
        self._effects: dict[bytes, bytes | None] = {}
        self._next_seq = hot.next_seq
        self._added: list[tuple[Entry, Vectors | None]] = []
        self._removed: list[int] = []
        self._episodes: dict[str | None, list[Episode]] = {}
        self.ingested_ms, self.ingested_logged = partition.ingest_time(
            write.record.position.source, *_append_time(write)
        )

    @property
    def owner(self) -> Owner:
        return self._hot.owner

    # ------------------------------------------------------------------ reading

    def current(self, memory_id: str) -> Current | None:
        """Where the id leads, forgotten memories included."""
        stored = self._partition.get(keys.current(self._hot.key, self._hot.name(memory_id)))
        return Current.decode(stored) if stored else None

    def row(self, memory_id: str, version: int) -> MemoryRow:
        stored = self._partition.get(keys.row(self._hot.key, self._hot.name(memory_id), version))
        if stored is None:
            raise KeyError(f"version {version} of a current memory is missing")
        return MemoryRow.decode(stored)

    def entry(self, seq: int) -> Entry:
        stored = self._partition.get(keys.entry(self._hot.key, seq))
        if stored is None:
            raise KeyError(f"index entry {seq} of a current memory is missing")
        return Entry.decode(stored)

    def vectors(self, seq: int) -> Vectors | None:
        stored = self._partition.get(keys.vectors(self._hot.key, seq))
        return Vectors.decode(stored) if stored else None

    def entries(self) -> list[Entry]:
        """All current memories, in order of arrival."""
        self._partition.commit()  # a scan sees committed records only
        return [Entry.decode(value) for _, value in self._partition.scan(keys.table(self._hot.key, keys.ENTRY))]

    def episodes(self, session_id: str | None) -> list[Episode]:
        return self._hot.episodes(session_id)

    def digest(self, content: bytes) -> str:
        return self._partition.keyring.digest(self._hot.key, content).hex()

    def was_applied(self, event_id: str) -> str | None:
        """The digest of the event that was applied under this id, if one was."""
        stored = self._partition.get(keys.event_id(self._hot.key, self._hot.name(event_id)))
        return stored.decode() if stored else None

    # ------------------------------------------------------------------ changing

    def next_seq(self) -> int:
        """The sequence number of a new memory."""
        self._next_seq += 1
        return self._next_seq - 1

    def put(self, row: MemoryRow, entry: Entry, vectors: Vectors | None, digest: str) -> None:
        """Stores a version of a memory and makes it the current one."""
        key, name = self._hot.key, self._hot.name(row.id)
        self._effects[keys.row(key, name, row.version)] = row.encode()
        self._effects[keys.current(key, name)] = Current(row.seq, row.version, digest, False).encode()
        self._effects[keys.entry(key, row.seq)] = entry.encode()
        self._effects[keys.vectors(key, row.seq)] = vectors.encode() if vectors else None
        self._added.append((entry, vectors))

    def forget(self, memory_id: str, current: Current) -> None:
        """Removes every version. The id leads to a tombstone, so that a replay does not bring the memory back."""
        key, name = self._hot.key, self._hot.name(memory_id)
        for version in range(current.version + 1):
            self._effects[keys.row(key, name, version)] = None
        self._effects[keys.entry(key, current.seq)] = None
        self._effects[keys.vectors(key, current.seq)] = None
        self._effects[keys.current(key, name)] = current._replace(forgotten=True).encode()
        self._removed.append(current.seq)

    def put_episodes(self, session_id: str | None, changed: list[Episode]) -> None:
        session = self._hot.session_key(session_id)
        for episode in changed:
            self._effects[keys.episode(self._hot.key, session, episode.number)] = episode.encode()
        self._episodes[session_id] = changed

    def mark_applied(self, event_id: str, digest: str) -> None:
        self._effects[keys.event_id(self._hot.key, self._hot.name(event_id))] = digest.encode()

    # ------------------------------------------------------------------ end

    def keep(self) -> None:
        """The event succeeded: its effects join the transaction, and what is hot follows."""
        if not self._effects:
            return
        if self._next_seq != self._hot.next_seq:
            self._effects[keys.head(self._hot.key)] = Head(self._hot.owner, self._next_seq).encode()
            self._hot.next_seq = self._next_seq
        self._partition.stage(self._effects)
        for session_id, changed in self._episodes.items():
            self._hot.put_episodes(session_id, changed)
        if self._hot.index is not None:
            for seq in self._removed:
                self._hot.index.remove(seq)
            if self._added:
                self._hot.index.add([e for e, _ in self._added], {e.seq: v for e, v in self._added})


def _append_time(write: Write) -> tuple[int, bool]:
    """When the log took the event in. Lines of a file know only their event time, which then stands for both: a replay
    of the file gives the same state whenever it is run."""
    if not write.record.append_logged and write.event.timestamp is not None:
        return write.event.timestamp, True
    return write.record.append_ms, write.record.append_logged
