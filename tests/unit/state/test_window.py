"""Sketches find close memories, and the window holds the newest ones after any load."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.embedder import Matrix
from recallflow.state.window import BITS, SKETCH_BYTES, WINDOW, SketchWindow, most_different, sketches


def pairs(dimension: int, cosine: float, count: int, seed: int) -> list[tuple[Matrix, Matrix]]:
    """Pairs of unit vectors with the given cosine, in random directions."""
    draw = np.random.default_rng(seed)
    one, other = draw.standard_normal((2, count, dimension))
    one /= np.linalg.norm(one, axis=1, keepdims=True)
    other -= np.sum(one * other, axis=1, keepdims=True) * one
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    second = cosine * one + math.sqrt(1 - cosine * cosine) * other
    return list(zip(one.astype(np.float32), second.astype(np.float32), strict=True))


def sketch(vector: Matrix) -> bytes:
    return sketches([vector])[0]


def differing(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


@pytest.mark.parametrize("dimension", [4, 256, 384])
@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.85, 0.99])
def test_sketches_differ_as_the_angle_says(dimension: int, cosine: float) -> None:
    bits = [differing(sketch(one), sketch(other)) for one, other in pairs(dimension, cosine, 500, seed=1)]
    assert np.mean(bits) == pytest.approx(BITS * math.acos(cosine) / math.pi, abs=8)
    assert sum(found > most_different(cosine) for found in bits) <= 1


def test_sketch_does_not_depend_on_its_batch() -> None:
    # Stored sketches are compared with new ones: other hyperplanes would be another format.
    draw = np.random.RandomState(0)
    rows = draw.standard_normal((60, 384)).astype(np.float32)
    planes = np.random.RandomState(BITS).standard_normal((BITS, 384)).astype(np.float32)
    rows[20:40] -= np.outer(rows[20:40] @ planes[7] / (planes[7] @ planes[7]), planes[7])  # hardly off a hyperplane
    rows[50] = 0
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    alone = [sketch(row) for row in rows]
    assert sketches([*rows]) == sketches([*np.asfortranarray(rows)]) == alone
    assert sketches([*rows[::-1]]) == alone[::-1]
    assert alone[0].hex() == "211a825b797400dd06b2f6b69ea161666387a6a544944055a921bbabfcb3e0b9"
    assert {len(one) for one in alone} == {SKETCH_BYTES}
    assert sketches([]) == []


SKETCHES = [bytes([value]) * SKETCH_BYTES for value in (0x00, 0x01, 0x03, 0x0F, 0xFF)]
CHANGES = st.lists(st.tuples(st.integers(0, 3 * WINDOW), st.sampled_from([None, *SKETCHES])), max_size=12)


@given(changes=CHANGES, asked=st.sampled_from(SKETCHES), most=st.integers(0, BITS))
def test_window_holds_the_newest_sequence_numbers(
    changes: list[tuple[int, bytes | None]], asked: bytes, most: int
) -> None:
    window, there = SketchWindow(), dict[int, bytes]()
    newest = max((seq for seq, _ in changes), default=0)
    for seq, found in changes:
        if found is None:
            window.remove(seq)
            there.pop(seq, None)
        else:
            window.put(seq, found)
            there[seq] = found
    distances = {seq: differing(found, asked) for seq, found in there.items() if seq > newest - WINDOW}
    expected = sorted((seq for seq in distances if distances[seq] <= most), key=lambda seq: (distances[seq], -seq))
    assert window.near(asked, most, newest) == expected


@pytest.mark.parametrize("rounds", [1, 2])
def test_late_sketch_does_not_replace_a_newer_one(rounds: int) -> None:
    window = SketchWindow()
    newer = 7 + rounds * WINDOW
    window.put(newer, SKETCHES[0])
    window.put(7, SKETCHES[-1])
    window.remove(7)
    assert window.near(SKETCHES[0], 0, newer) == [newer]
    assert window.near(SKETCHES[-1], 0, newer) == []
    window.put(newer, SKETCHES[1])  # its own, anew
    assert window.near(SKETCHES[1], 0, newer) == [newer]


def test_a_window_grows_to_its_size_and_no_further() -> None:
    window = SketchWindow()
    small = window.size_bytes()
    for seq in range(3 * WINDOW):
        window.put(seq, SKETCHES[0])
    assert small < window.size_bytes() == WINDOW * (SKETCH_BYTES + 8 + 4 + 1)  # place, distance, near
