"""Queries → responses, from what is committed."""

from collections.abc import Callable

from recallflow.embedder import Embedder
from recallflow.operators import lookups
from recallflow.operators.events import Ask
from recallflow.operators.recall.pipeline import Engine, recall
from recallflow.owner import Owner
from recallflow.queries import EpisodesList, MemoryGet, MemoryHistory, Recall, UserStats
from recallflow.responses import Response
from recallflow.state import keys
from recallflow.state.hot import HotOwners
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.partition import Partition
from recallflow.state.rows import Current, MemoryRow


class Answerer:
    """Answers the queries of one state partition."""

    def __init__(
        self,
        partition: Partition,
        hot_owners: HotOwners,
        embedder: Embedder,
        episode_gap_ms: int,
        timer: Callable[[], float],
    ) -> None:
        self._partition = partition
        self._hot_owners = hot_owners
        self._engine = Engine(embedder, self._rows, timer)
        self._episode_gap_ms = episode_gap_ms

    def hot_owner(self, owner: Owner) -> HotOwner:
        return self._hot_owners.get(owner, lambda: HotOwner(self._partition, owner))

    def answer(self, ask: Ask, query_id: str) -> Response:
        """One query's response. Raises InvalidRecord where there is no answer to give."""
        query, hot = ask.query, self.hot_owner(ask.owner)
        now_ms = query.timestamp if query.timestamp is not None else ask.record.append_ms
        match query:
            case Recall():
                return recall(self._engine, hot, query, query_id, now_ms)
            case MemoryGet():
                *_, latest = self._versions(hot, query.memory_id)
                return Response(query_id=query_id, status="ok", versions=[lookups.version(latest)])
            case MemoryHistory():
                versions = [lookups.version(row) for row in self._versions(hot, query.memory_id)]
                return Response(query_id=query_id, status="ok", versions=versions)
            case EpisodesList():
                found = lookups.episodes(
                    self._index(hot), lambda slots: self._rows(hot, slots), query, now_ms, self._episode_gap_ms
                )
                return Response(query_id=query_id, status="ok", episodes=found)
            case UserStats():
                return Response(query_id=query_id, status="ok", stats=lookups.stats(self._index(hot), now_ms))
        raise lookups.unsupported(query.type)

    def _versions(self, hot: HotOwner, memory_id: str) -> list[MemoryRow]:
        """All versions of a memory, oldest first. Raises InvalidRecord where there is none."""
        name = hot.name(memory_id)
        stored = self._partition.get(keys.current(hot.key, name))
        if stored is None or (current := Current.decode(stored)).forgotten:
            raise lookups.missing(memory_id)
        wanted = [keys.row(hot.key, name, version) for version in range(current.version + 1)]
        return [MemoryRow.decode(value) for value in self._partition.get_many(wanted) if value is not None]

    def _rows(self, hot: HotOwner, slots: list[int]) -> list[MemoryRow | None]:
        """The current rows of index slots, in one batched read."""
        index = self._index(hot)
        wanted = [keys.row(hot.key, hot.name(index.ids[s]), int(index.facts["version"][s])) for s in slots]
        return [MemoryRow.decode(v) if v is not None else None for v in self._partition.get_many(wanted)]

    def _index(self, hot: HotOwner) -> OwnerIndex:
        return hot.search_index(self._engine.embedder.name, self._engine.embedder.dimension)
