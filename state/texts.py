"""Strings by slot, one after the other as bytes: of a large owner's thousands of ids a question shows ten."""

from collections.abc import Iterable

import numpy as np

from recallflow.state.arrays import Array, GrowingArray, Ints


class Texts:
    """Strings by number, from 0 in the order they were added."""

    def __init__(self) -> None:
        self._bytes = GrowingArray(np.uint8, 1_024)
        self._ends = GrowingArray(np.int64)
        self._decoded: list[str] = []  # the first ones, once all were asked for

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> str:
        start = self._ends.view[number - 1] if number else 0
        return self._bytes.view[start : self._ends.view[number]].tobytes().decode()

    def all(self) -> list[str]:
        """Every string by number; not to be changed."""
        start = len(self._decoded)
        if start < len(self):
            data, ends = self._bytes.view.tobytes(), self._ends.view
            starts = np.append(0, ends[:-1])
            pairs = zip(starts[start:].tolist(), ends[start:].tolist(), strict=True)
            self._decoded += [data[first:end].decode() for first, end in pairs]
        return self._decoded

    def add(self, texts: Iterable[str]) -> None:
        """Appends strings."""
        encoded = [text.encode() for text in texts]
        self.append(
            np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([len(one) for one in encoded], dtype=np.int64)
        )

    def append(self, data: Array, ends: Ints) -> None:
        """Appends strings as `packed` gave them."""
        self._ends.extend(ends.astype(np.int64) + len(self._bytes))
        self._bytes.extend(data)

    def packed(self) -> tuple[Array, Array]:
        """The bytes of all strings, (bytes,) uint8, and where each one ends."""
        return self._bytes.view, self._ends.view

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes + self._ends.nbytes + 60 * len(self._decoded)
