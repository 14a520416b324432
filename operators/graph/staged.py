"""What one event changes of its owner's graph, as it will be stored and as memory takes it in."""

from dataclasses import dataclass, field

from recallflow.state.graph_codec import Superseded, Unsynced
from recallflow.state.partition import Partition


@dataclass(slots=True)
class Staged:
    """Records to write, and what memory is to take in of them: `known` nodes and `gone` ones (see `HotGraph`)."""

    effects: dict[bytes, bytes | None] = field(default_factory=dict)
    known: dict[str, bytes] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    superseded: dict[int, list[Superseded]] = field(default_factory=dict)
    unsynced: dict[int, Unsynced | None] = field(default_factory=dict)
    sketches: dict[int, bytes] = field(default_factory=dict)
    edges: int = 0

    def get(self, partition: Partition, key: bytes) -> bytes | None:
        """A record as the event leaves it so far."""
        return self.effects[key] if key in self.effects else partition.get(key)

    def copied(self) -> "Staged":
        """Another one of the same content."""
        return Staged(
            dict(self.effects),
            dict(self.known),
            set(self.gone),
            dict(self.superseded),
            dict(self.unsynced),
            dict(self.sketches),
            self.edges,
        )
