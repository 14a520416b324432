"""An owner's index of the memories of some projects alone, which stays up to date with each event."""

from dataclasses import dataclass, field

from recallflow.state.index import OwnerIndex
from recallflow.state.rows import EpisodeRow


@dataclass(slots=True)
class ScopedIndex:
    """An index with its current episodes by session, in order of time, and the episode gap. Its episodes are computed
    from its own memories only."""

    index: OwnerIndex
    gap_ms: int
    sessions: dict[str | None, list[EpisodeRow]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for episode in sorted(self.index.episodes(), key=lambda one: (one.start_ms, one.last_ms, one.number)):
            self.sessions.setdefault(episode.session_id, []).append(episode)

    def holds(self, project_id: str | None) -> bool:
        """Return whether the index holds memories of a project."""
        return self.index.projects is not None and project_id in self.index.projects
