"""What writing an owner's graph keeps in memory. Derived data only: all of it is built from RocksDB on first touch."""

from recallflow.state import keys
from recallflow.state.graph_codec import Unsynced, sketch_of
from recallflow.state.partition import Partition
from recallflow.state.window import WINDOW, SketchWindow

KNOWN_NODES = 1_024
_NODE_BYTES = 250


class HotGraph:
    """`known`: keys of nodes that are stored, with what stands for each in stored keys; not all there are.
    `unsynced`: `seq` of the memories whose graph is still to be written."""

    def __init__(self, partition: Partition, owner: bytes) -> None:
        self._partition = partition
        self._owner = owner
        self._window: SketchWindow | None = None
        self.known: dict[str, bytes] = {}
        # Nothing of an owner is pending when it is first touched: owners leave memory only between batches.
        stored = partition.scan(keys.table(owner, keys.UNSYNCED))
        self.unsynced = {keys.sequence(key): Unsynced.decode(value) for key, value in stored}

    def window(self, newest: int) -> SketchWindow:
        """The owner's newest vectors up to `newest`, loaded on first touch, before the event at hand."""
        if self._window is None:
            self._window = SketchWindow()
            first = keys.links(self._owner, max(0, newest - WINDOW + 1))
            end = keys.after(keys.table(self._owner, keys.LINKS))
            self._partition.commit()  # a scan sees committed records only
            for key, value in self._partition.scan_range(first, end):
                if found := sketch_of(value):
                    self._window.put(keys.sequence(key), found)
        return self._window

    def follow(
        self,
        known: dict[str, bytes],
        gone: set[str],
        unsynced: dict[int, Unsynced | None],
        sketches: dict[int, bytes],
    ) -> None:
        """Takes in what an event changed: nodes that are stored, nodes that are not any more, which memories are out of
        step, and sketches, empty ones of memories that have none now."""
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
            for seq, found in sketches.items():
                if found:
                    self._window.put(seq, found)
                else:
                    self._window.remove(seq)

    def size_bytes(self) -> int:
        window = self._window.size_bytes() if self._window is not None else 0
        return window + _NODE_BYTES * len(self.known)
