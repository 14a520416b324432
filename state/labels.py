"""Labels of memories that filters ask for: tags, and what their metadata says."""

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from recallflow.limits import METADATA_NAME_CHARACTERS, METADATA_TEXT_CHARACTERS, METADATA_VALUES_MAX
from recallflow.state.arrays import Ints

_LABELLED_BYTES = 200
_NO_SLOTS: Ints = np.zeros(0, np.int64)


class Labels:
    """The labels of memories by slot, and the slots that have a label. Labels of segments are opened when they are
    first asked for, and slots are listed by label from the first time on that anyone asks for these."""

    def __init__(self) -> None:
        self._of: dict[int, list[str]] = {}
        self._packed: list[tuple[int, bytes]] = []  # by the first slot of each
        self._slots: dict[str, array[int]] | None = None

    def __getitem__(self, slot: int) -> list[str]:
        """A slot's labels, none for most."""
        return self._opened().get(slot, [])

    def add(self, first: int, labels: Iterable[Sequence[str]]) -> None:
        """Adds the labels of the slots from `first` on."""
        added = {first + at: [*of_one] for at, of_one in enumerate(labels) if of_one}
        self._of.update(added)
        if self._slots is not None:
            _list(added, self._slots)

    def append(self, first: int, packed: bytes) -> None:
        """Adds labels as `packed` gave them; their slots count from `first`."""
        self._packed.append((first, packed))

    def packed(self) -> bytes:
        """All labels, as another one can append them: JSON of [slot, labels] of those that have any."""
        return orjson.dumps([*self._opened().items()])

    def slots(self, label: str) -> Ints:
        """The slots that have a label."""
        self._opened()
        if self._slots is None:
            self._slots = {}
            _list(self._of, self._slots)
        found = self._slots.get(label)
        return _NO_SLOTS if found is None else np.array(found, np.int64)

    def size_bytes(self) -> int:
        """Bytes in memory, about."""
        listed = 0 if self._slots is None else sum(map(len, self._slots.values())) * 8 + 100 * len(self._slots)
        return _LABELLED_BYTES * len(self._of) + sum(len(packed) for _, packed in self._packed) + listed

    def _opened(self) -> dict[int, list[str]]:
        waiting, self._packed = self._packed, []
        for first, packed in waiting:
            opened = {first + place: labels for place, labels in orjson.loads(packed)}
            self._of.update(opened)
            if self._slots is not None:
                _list(opened, self._slots)
        return self._of


def _list(labels: Mapping[int, list[str]], slots: dict[str, "array[int]"]) -> None:
    for slot, of_one in labels.items():
        for label in of_one:
            if (known := slots.get(label)) is None:
                known = slots[label] = array("q")
            known.append(slot)


def metadata_labels(metadata: Mapping[str, Any] | None) -> list[str]:
    """What filters know of a memory's metadata: its fields that are a text, a number, true or false, or a list of such,
    by name; of very many the first, and none that is very long."""
    found: dict[str, None] = {}
    for name, value in sorted((metadata or {}).items()):
        values = value if isinstance(value, list) else [value]
        known = [one for one in values if len(name) <= METADATA_NAME_CHARACTERS and _is_known(one)]
        found |= dict.fromkeys(metadata_label(name, one) for one in known[: METADATA_VALUES_MAX - len(found)])
    return [*found]


def _is_known(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= METADATA_TEXT_CHARACTERS
    return isinstance(value, int | float)


def metadata_label(name: str, value: str | float) -> str:
    """A field of metadata that has a value, as one label. 5.0 is 5, and neither is "5"; `true` is no number."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    return json.dumps([name, whole], ensure_ascii=False)
