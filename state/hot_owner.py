"""What is known of an owner while hot: its place in the store, its sessions' episodes, and its search index."""

from collections.abc import Iterable

from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.index import OwnerIndex
from recallflow.state.partition import Partition
from recallflow.state.rows import Entry, Episode, Head, Vectors

_OWNER_BYTES = 1_000
_EPISODE_BYTES = 300


class HotOwner:
    """One owner in memory. Writers need the head and the episodes of the session at hand; only a query builds the
    search index, and from then on each event keeps it up to date."""

    def __init__(self, partition: Partition, owner: Owner) -> None:
        self.owner = owner
        self.key = partition.keyring.owner(owner)
        self._partition = partition
        stored = partition.get(keys.head(self.key))
        self.next_seq = Head.decode(stored).next_seq if stored else 0
        self.index: OwnerIndex | None = None
        self._sessions: dict[str | None, list[Episode]] = {}

    def name(self, text: str) -> bytes:
        """The keyed hash that stands for an id or session of this owner."""
        return self._partition.keyring.name(self.key, text)

    def session_key(self, session_id: str | None) -> bytes:
        """Messages without a session are one session of their own; no id can take its key, as ids are not empty."""
        return self.name(session_id or "")

    def episodes(self, session_id: str | None) -> list[Episode]:
        """The session's standing episodes, by time. Episodes of one session never overlap."""
        if session_id not in self._sessions:
            # Nothing of this session can be pending: whatever staged it would have loaded it here first, and owners
            # leave memory only between batches.
            prefix = keys.table(self.key, keys.EPISODE) + self.session_key(session_id)
            stored = [Episode.decode(value) for _, value in self._partition.scan(prefix)]
            self._sessions[session_id] = _standing(stored)
        return self._sessions[session_id]

    def put_episodes(self, session_id: str | None, changed: list[Episode]) -> None:
        """Takes the new state of the session's episodes into memory."""
        standing = self.episodes(session_id)
        if len(changed) == 1 and standing and standing[-1].number == changed[0].number:
            standing[-1] = changed[0]  # the usual case: the next message of the latest episode
        else:
            numbers = {episode.number for episode in changed}
            rest = [episode for episode in standing if episode.number not in numbers]
            self._sessions[session_id] = _standing([*rest, *changed])
        if self.index is not None:
            for episode in changed:
                self.index.put_episode(episode)

    def search_index(self, model: str, dimension: int) -> OwnerIndex:
        """The owner's index, built from what is committed on first touch."""
        if self.index is None or self.index.wasted():
            self.index = OwnerIndex(model, dimension)
            scan, table = self._partition.scan, keys.table
            self.index.load(
                (Episode.decode(value) for _, value in scan(table(self.key, keys.EPISODE))),
                [Entry.decode(value) for _, value in scan(table(self.key, keys.ENTRY))],
                {keys.sequence(k): Vectors.decode(value) for k, value in scan(table(self.key, keys.VECTORS))},
            )
        return self.index

    def size_bytes(self) -> int:
        episodes = sum(len(session) for session in self._sessions.values())
        index = self.index.size_bytes() if self.index is not None else 0
        return _OWNER_BYTES + _EPISODE_BYTES * episodes + index


def _standing(episodes: Iterable[Episode]) -> list[Episode]:
    # Two may start at one moment: one that ended there, and one whose messages came after that end.
    return sorted((e for e in episodes if e.merged_into is None), key=lambda e: (e.start_ms, e.last_ms, e.number))
