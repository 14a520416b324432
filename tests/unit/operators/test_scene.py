"""The best places of a scene, however many there are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.operators.harness import make_entry, make_scene


@given(
    signal=st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=60),
    count=st.integers(1, 60),
    data=st.data(),
)
def test_the_best_come_in_order_and_of_equals_the_earlier_first(
    signal: list[float], count: int, data: st.DataObject
) -> None:
    allowed = sorted(data.draw(st.sets(st.integers(0, len(signal) - 1), min_size=1)))
    entries = [make_entry(n, episode=0, created_ms=n) for n in range(len(signal))]
    scene = make_scene("relevance", entries, signal, allowed=allowed)
    expected = sorted(allowed, key=lambda place: (-signal[place], place))[:count]
    assert scene.best(count).tolist() == expected


def test_few_of_many() -> None:
    signal = np.arange(400) * 7 % 50
    entries = [make_entry(n, episode=0, created_ms=n) for n in range(400)]
    scene = make_scene("relevance", entries, signal)
    assert scene.best(9).tolist() == np.lexsort((np.arange(400), -signal))[:9].tolist()
