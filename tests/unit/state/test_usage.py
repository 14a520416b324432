"""How often memories were returned and judged, kept by `seq`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.state.usage import OwnerUsage, Usage, decode_seqs, encode_seqs

COUNTS = st.integers(0, 2**32 - 1)
USAGES = st.builds(Usage, st.integers(-(2**62), 2**62), COUNTS, COUNTS, COUNTS)


@given(used=USAGES)
def test_a_record_comes_back_as_it_was(used: Usage) -> None:
    assert Usage.decode(used.encode()) == used
    assert len(used.encode()) == 20


@pytest.mark.parametrize("data", [b"", b"x" * 19, b"x" * 40])
def test_another_size_is_no_record(data: bytes) -> None:
    with pytest.raises(ValueError, match="usage record"):
        Usage.decode(data)


@given(seqs=st.lists(st.integers(0, 2**62)))
def test_sequence_numbers_come_back_in_order(seqs: list[int]) -> None:
    assert decode_seqs(encode_seqs(seqs)).tolist() == seqs


@given(stored=st.dictionaries(st.integers(0, 40), USAGES), asked=st.lists(st.integers(0, 60)))
def test_what_is_stored_is_found_and_the_rest_is_zero(stored: dict[int, Usage], asked: list[int]) -> None:
    found = OwnerUsage((seq, used.encode()) for seq, used in stored.items()).of(np.array(asked, np.int64))
    assert [Usage(*record) for record in found.tolist()] == [stored.get(seq, Usage()) for seq in asked]


def test_answer_counts_once_per_memory_with_the_latest_time() -> None:
    usage = OwnerUsage([(3, Usage(500, 2, 1, 0).encode())])
    assert [Usage.decode(data) for data in usage.count([7, 3], 400)] == [Usage(400, 1), Usage(500, 3, 1, 0)]
    assert [Usage.decode(data) for data in usage.count([3], 600)] == [Usage(600, 4, 1, 0)]
    assert usage.of(np.array([7, 3, 5])).tolist() == [(400, 1, 0, 0), (600, 4, 1, 0), (0, 0, 0, 0)]


def test_liked_is_what_was_more_often_useful_than_not() -> None:
    judged = [Usage(useful=1), Usage(useful=2, not_useful=2), Usage(not_useful=1), Usage(useful=3, not_useful=2)]
    usage = OwnerUsage([(3, judged[3].encode())])
    assert [*usage.liked()] == [3]
    for seq in (2, 1, 0, 0):
        usage.put(seq, judged[seq])
    assert [*usage.liked()] == [3, 0]
    usage.put(3, judged[3].judged(useful=False))
    assert [*usage.liked()] == [0]


def test_a_voice_counts_on_its_side() -> None:
    assert Usage(9, 3, 1, 1).judged(useful=True) == Usage(9, 3, 2, 1)
    assert Usage(9, 3, 1, 1).judged(useful=False) == Usage(9, 3, 1, 2)
