"""What writing an owner's graph needs in memory. All of it is derived: it is built from RocksDB on first touch."""

from recallflow.state import keys
from recallflow.state.graph_codec import Unsynced, sketch_of
from recallflow.state.partition import Partition
from recallflow.state.window import WINDOW, SketchWindow

KNOWN_NODES = 1_024
_NODE_BYTES = 250


class HotGraph:
    """`known`: node key → its name in stored keys, for some of the nodes that are stored. `unsynced`: `seq` → marker of
    the memories whose graph is still to be written."""

    def __init__(self, partition: Partition, owner: bytes) -> None:
        self._partition = partition
        self._owner = owner
        self._window: SketchWindow | None = None
        self.known: dict[str, bytes] = {}
        # A scan reads only what is committed. That is all of an owner at its first touch: owners are evicted only
        # between batches.
        stored = partition.scan(keys.table(owner, keys.UNSYNCED))
        self.unsynced = {keys.sequence(key): Unsynced.decode(value) for key, value in stored}

    def window(self, newest: int) -> SketchWindow:
        """Sketches of the owner's newest vectors up to the `seq` `newest`, loaded on first touch, which is before the
        event at hand changes any."""
        if self._window is None:
            self._window = SketchWindow()
            first = keys.links(self._owner, max(0, newest - WINDOW + 1))
            end = keys.after(keys.table(self._owner, keys.LINKS))
            self._partition.commit()  # a scan reads only what is committed
            for key, value in self._partition.scan_range(first, end):
                if sketch := sketch_of(value):
                    self._window.put(keys.sequence(key), sketch)
        return self._window

    def apply(
        self,
        known: dict[str, bytes],
        gone: set[str],
        unsynced: dict[int, Unsynced | None],
        sketches: dict[int, bytes],
    ) -> None:
        """Applies what an event changed: nodes that are stored now, nodes that are gone, memories whose graph is still
        to be written (None: it is written), and sketches (empty: the memory has none any more)."""
        if len(self.known) > KNOWN_NODES:
            self.known.clear()
        self.known.update(known)
        for key in gone:
            self.known.pop(key, None)
        for seq, marker in unsynced.items():
            self.unsynced.pop(seq, None)
            if marker is not None:
                self.unsynced[seq] = marker
        if self._window is not None:
            for seq, sketch in sketches.items():
                if sketch:
                    self._window.put(seq, sketch)
                else:
                    self._window.remove(seq)

    def size_bytes(self) -> int:
        window = self._window.size_bytes() if self._window is not None else 0
        return window + _NODE_BYTES * len(self.known)
