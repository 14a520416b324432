"""What writing an owner's graph needs in memory. All of it is derived: it is built from RocksDB on first touch."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import TypeVar

from recallflow.embedder import Matrix
from recallflow.state import keys
from recallflow.state.caseless import decode_names
from recallflow.state.entity_names import NAMES_MOST, EntityNames
from recallflow.state.graph_codec import NodeKey, NodeRow, Superseded, Unsynced, is_entity, sketch_of
from recallflow.state.partition import Partition
from recallflow.state.rows import Vectors
from recallflow.state.unions import Joined
from recallflow.state.window import WINDOW, SketchWindow

K = TypeVar("K")
V = TypeVar("V")

KNOWN_NODES = KNOWN_VECTORS = 1_024
_NODE_BYTES = 250


@dataclass(slots=True)
class Staged:
    """What one event changes of its owner's graph: records to write (None deletes), and what memory learns of them.
    `nodes`: see `HotGraph`, None of a node that is gone; `superseded`: see `OwnerGraph`; `unsynced`: None of a memory
    that is in step again; `joined`: see `Unions`; `caseless`: all of them, if they are others now; `sketches`: empty of
    a memory that has none now; `edges`: how many numbers it gives to edges; `more_edges`: how many more there are after
    it; `kept`: keys of what it keeps of the past, by the node or edge that they begin with."""

    effects: dict[bytes, bytes | None] = field(default_factory=dict)
    nodes: dict[str, bytes | None] = field(default_factory=dict)
    superseded: dict[int, list[Superseded]] = field(default_factory=dict)
    unsynced: dict[int, Unsynced | None] = field(default_factory=dict)
    joined: dict[str, list[Joined]] = field(default_factory=dict)
    caseless: list[str] | None = None
    sketches: dict[int, bytes] = field(default_factory=dict)
    edges: int = 0
    more_edges: int = 0
    kept: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)

    def get(self, partition: Partition, key: bytes) -> bytes | None:
        """A record as the event leaves it so far."""
        return self.effects[key] if key in self.effects else partition.get(key)

    def copied(self) -> "Staged":
        """Another one of the same content."""
        return Staged(*(copy(getattr(self, one.name)) for one in fields(self)))


class HotGraph:
    """What memory holds of one owner's graph. `nodes`: node key → its name in stored keys, for some of the nodes that
    are stored; for all of them if `has_all_nodes`. `absent`: keys of some that are not, of which texts made somebody
    ask. `unsynced`: `seq` → marker of the memories whose graph is still to be written."""

    def __init__(self, partition: Partition, owner: bytes, *, was_empty: bool) -> None:
        """`was_empty`: nothing was stored of the owner as it was loaded."""
        self._partition = partition
        self._owner = owner
        self._window = SketchWindow() if was_empty else None
        self.has_all_nodes = was_empty
        self._wholes: dict[int, Matrix] = {}  # whole vectors of one model, by `seq`, of some memories
        self._model = ""
        self._caseless: list[str] | None = None
        self._names: EntityNames | None = None
        self.nodes: dict[str, bytes] = {}
        self.absent: set[str] = set()
        self.unsynced: dict[int, Unsynced] = {}
        if was_empty:
            return
        # A scan reads only what is committed. That is all of an owner at its first touch: owners are evicted only
        # between batches.
        stored = partition.scan(keys.table(owner, keys.UNSYNCED))
        self.unsynced = {keys.sequence(key): Unsynced.decode(value) for key, value in stored}

    def caseless(self) -> list[str]:
        """The owner's names in scripts without case, loaded on first touch."""
        if self._caseless is None:
            stored = self._partition.get(keys.caseless(self._owner))
            self._caseless = decode_names(stored) if stored else []
        return self._caseless

    def names(self) -> EntityNames:
        """The owner's entities by the words of their names, loaded on first touch."""
        if self._names is None:
            nodes = self._partition.scan(keys.table(self._owner, keys.NODE))
            found = [NodeRow.decode(value).key for _, value in islice(nodes, NAMES_MOST + 1)]
            self._names = EntityNames(key.text for key in found if is_entity(key) and len(found) <= NAMES_MOST)
        return self._names

    def window(self, newest: int) -> SketchWindow:
        """Sketches of the owner's newest vectors up to the `seq` `newest`, loaded on first touch, which is before the
        event at hand changes any."""
        if self._window is None:
            self._window = SketchWindow()
            first = keys.links(self._owner, max(0, newest - WINDOW + 1))
            end = keys.after(keys.table(self._owner, keys.LINKS))
            for key, value in self._partition.scan_range(first, end):
                if sketch := sketch_of(value):
                    self._window.put(keys.sequence(key), sketch)
        return self._window

    def wholes(self, seqs: Sequence[int], model: str, dimension: int) -> list[Matrix | None]:
        """Return the whole vector of each memory that has one of this model, as it was before the event at hand."""
        if model != self._model:
            self._wholes, self._model = {}, model
        known = self._wholes
        missing = [seq for seq in seqs if seq not in known]
        if not missing:
            return [known[seq] for seq in seqs]
        stored = self._partition.get_many([keys.vectors(self._owner, seq) for seq in missing])
        read = [None if value is None else Vectors.read_whole(value, model, dimension) for value in stored]
        found = known | dict(zip(missing, read, strict=True))
        for seq, whole in zip(missing, read, strict=True):
            if whole is not None:
                self._keep_whole(seq, whole)
        return [found[seq] for seq in seqs]

    def put_vectors(self, seq: int, vectors: Vectors | None) -> None:
        """Take in the vectors that a memory has now; None where it has none."""
        self._wholes.pop(seq, None)
        if vectors is not None and vectors.model == self._model:
            self._keep_whole(seq, vectors.whole.copy())  # alone: it is a row of those that were made with it

    def _keep_whole(self, seq: int, whole: Matrix) -> None:
        if len(self._wholes) >= KNOWN_VECTORS:
            self._wholes.clear()
        self._wholes[seq] = whole

    def publish(self, staged: Staged) -> None:
        """Takes in what an event changed."""
        if len(self.nodes) > KNOWN_NODES:
            self.nodes.clear()
            self.has_all_nodes = False
        if len(self.absent) > KNOWN_NODES:
            self.absent.clear()
        self.absent.difference_update(staged.nodes)  # `-=` would copy all that are absent
        for key, name in staged.nodes.items():
            _put(self.nodes, key, name)
        if self._names is not None:
            for key, name in staged.nodes.items():
                if is_entity(NodeKey(key)):
                    self._names.remove(key) if name is None else self._names.put(key)
        for seq, marker in staged.unsynced.items():
            _put(self.unsynced, seq, marker)
        if staged.caseless is not None:
            self._caseless = staged.caseless
        if self._window is not None:
            for seq, sketch in staged.sketches.items():
                if sketch:
                    self._window.put(seq, sketch)
                else:
                    self._window.remove(seq)

    def size_bytes(self) -> int:
        window = self._window.size_bytes() if self._window is not None else 0
        names = self._names.size_bytes() if self._names is not None else 0
        wholes = next((whole.nbytes + _NODE_BYTES for whole in self._wholes.values()), 0) * len(self._wholes)
        return window + names + wholes + _NODE_BYTES * (len(self.nodes) + len(self.absent))


def _put(kept: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        kept.pop(key, None)
    else:
        kept[key] = value
