"""Labels of memories for filters: tags and metadata values."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import count, islice
from typing import Any, NamedTuple, Self

import numpy as np
import orjson

from recallflow.limits import METADATA_NAME_CHARACTERS, METADATA_TEXT_CHARACTERS, METADATA_VALUES_MAX
from recallflow.state.arrays import Ints

PACKED_FROM = 1_000  # labelled slots in one call: lists for 100,000 slots are slow to create and to free
_SLOT_BYTES, _LABEL_BYTES, _ADDITION_BYTES = 200, 150, 40  # estimates of memory per item

_encode_json = json.JSONEncoder(ensure_ascii=False).encode  # unlike orjson, it encodes integers of any size


class LabelColumns(NamedTuple):
    """Labels of several slots, in the form that is packed."""

    labels: list[str]  # the distinct labels
    slots: Ints
    sizes: Ints  # the number of labels of each slot
    numbers: Ints  # indexes in `labels`, slot by slot

    @classmethod
    def of(cls, labels: Mapping[int, list[str]]) -> Self:
        number_of: dict[str, int] = defaultdict(count().__next__)
        numbers = [number_of[label] for slot_labels in labels.values() for label in slot_labels]
        columns = [*labels], [*map(len, labels.values())], numbers
        return cls([*number_of], *(np.array(column, np.int64) for column in columns))

    @classmethod
    def decode(cls, packed: bytes, first: int) -> Self:
        """Decode packed labels. Their slots are relative to `first`."""
        labels, *columns = orjson.loads(packed)
        slots, sizes, numbers = (np.array(column, np.int64) for column in columns)
        return cls(labels, slots + first, sizes, numbers)

    def encode(self) -> bytes:
        return orjson.dumps([self.labels, *(column.tolist() for column in self[1:])])

    def by_slot(self) -> dict[int, list[str]]:
        flat = iter([self.labels[number] for number in self.numbers.tolist()])
        sizes = zip(self.slots.tolist(), self.sizes.tolist(), strict=True)
        return {slot: [*islice(flat, size)] for slot, size in sizes}


class SlotLists(NamedTuple):
    """Slots by label. The slots of label n are `slots[ends[n - 1] : ends[n]]`."""

    numbers: dict[str, int]
    slots: Ints
    ends: Ints

    @classmethod
    def of(cls, parts: Iterable[LabelColumns]) -> Self:
        """Combine the slots of several parts, in their order."""
        number_of: dict[str, int] = defaultdict(count().__next__)
        numbers, slots = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for part in parts:
            numbers.append(np.array([number_of[label] for label in part.labels], np.int64)[part.numbers])
            slots.append(np.repeat(part.slots, part.sizes))
        flat = np.concatenate(numbers)
        ends = np.bincount(flat, minlength=len(number_of)).cumsum()
        return cls(dict(number_of), np.concatenate(slots)[np.argsort(flat, kind="stable")], ends)

    def get(self, label: str) -> Ints:
        """Return the slots of a label, in their original order."""
        number = self.numbers.get(label)
        if number is None:
            return self.slots[:0]
        return self.slots[self.ends[number - 1] if number else 0 : self.ends[number]]


class Labels:
    """The labels of memories by slot, and the slots by label. Packed labels are decoded at a lookup."""

    def __init__(self) -> None:
        self._by_slot: dict[int, list[str]] = {}  # without packed ones
        self._packed: list[tuple[int, bytes]] = []  # first slot, and labels
        self._by_label: SlotLists | None = None
        self._added: dict[str, list[int]] = defaultdict(list)  # slots added since `_by_label` was built

    def __getitem__(self, slot: int) -> list[str]:
        return self._unpacked().get(slot, [])

    def add(self, first: int, labels: Iterable[list[str]]) -> None:
        added = {first + at: slot_labels for at, slot_labels in enumerate(labels) if slot_labels}
        if len(added) >= PACKED_FROM:
            self.append(0, LabelColumns.of(added).encode())
            return
        self._by_slot.update(added)
        if self._by_label is not None:
            for slot, slot_labels in added.items():
                for label in slot_labels:
                    self._added[label].append(slot)

    def append(self, first: int, packed: bytes) -> None:
        """Add packed labels. Their slots are relative to `first`."""
        self._packed.append((first, packed))
        self._by_label = None

    def packed(self) -> bytes:
        """Return all labels in the form that `append` takes."""
        return LabelColumns.of(self._unpacked()).encode()

    def slots(self, label: str) -> Ints:
        if self._by_label is None:
            packed = [LabelColumns.decode(part, first) for first, part in self._packed]
            self._by_label = SlotLists.of([*packed, LabelColumns.of(self._by_slot)])
            self._added.clear()
        found = self._by_label.get(label)
        return np.append(found, self._added[label]) if label in self._added else found

    def size_bytes(self) -> int:
        lists = self._by_label
        listed = 0 if lists is None else lists.slots.nbytes + _LABEL_BYTES * len(lists.numbers)
        added = sum(map(len, self._added.values())) * _ADDITION_BYTES
        return _SLOT_BYTES * len(self._by_slot) + sum(len(packed) for _, packed in self._packed) + listed + added

    def _unpacked(self) -> dict[int, list[str]]:
        parts, self._packed = self._packed, []
        for first, packed in parts:
            self._by_slot |= LabelColumns.decode(packed, first).by_slot()
        return self._by_slot


def metadata_labels(metadata: Mapping[str, Any] | None) -> list[str]:
    """Return the labels of a memory's metadata: fields with a text, a number, a boolean, or a list of these, by name.
    Their number is limited, and long values are skipped."""
    found: dict[str, None] = {}
    for name, value in sorted((metadata or {}).items()):
        if len(name) > METADATA_NAME_CHARACTERS:
            continue
        values = value if isinstance(value, list) else [value]
        short = (one for one in values if not isinstance(one, str) or len(one) <= METADATA_TEXT_CHARACTERS)
        indexed = [one for one in short if isinstance(one, str | int | float)]
        found |= dict.fromkeys(metadata_label(name, one) for one in indexed[: METADATA_VALUES_MAX - len(found)])
    return [*found]


def metadata_label(name: str, value: str | float) -> str:
    """Return the label of a metadata field with a value. 5.0 equals 5, but not "5"; `true` is not a number."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    return _encode_json([name, whole])
