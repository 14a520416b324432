"""A partition's place: what it says is what whoever has the partition next finds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.kafka.place import TEXT_MOST, Place, Reached

OFFSET = st.integers(0, 2**48)
OFFSETS = st.lists(OFFSET, max_size=50).map(lambda found: tuple(sorted({*found})))
REACHED = st.builds(Reached, OFFSET, OFFSET, OFFSETS, OFFSETS)
TAILS = st.dictionaries(st.text("abc.", min_size=1, max_size=8), st.dictionaries(st.integers(0, 30), OFFSET))
WRITERS = st.text(max_size=20)
PLACES = st.builds(Place, REACHED, REACHED, st.integers(1, 1000), TAILS, OFFSET, st.booleans(), WRITERS, OFFSET)


def without_empty(place: Place) -> Place:
    tails = {topic: numbers for topic, numbers in place.tails.items() if numbers}
    return replace(place, tails=tails)


@given(PLACES)
def test_a_place_is_read_as_it_was_written(place: Place) -> None:
    assert without_empty(Place.decode(place.encode())) == without_empty(place)


@given(PLACES, st.lists(OFFSET, max_size=2_000).map(lambda found: tuple(sorted({*found}))))
def test_text_beside_an_offset_is_bounded_and_loses_nothing(place: Place, still: tuple[int, ...]) -> None:
    queries = place.queries._replace(open=still, ahead=tuple(one for one in place.queries.ahead if one not in still))
    place = Place(place.memory._replace(open=(), ahead=()), queries, 16, place.tails, place.at_ms, False, "d")
    text = place.text()
    told = Place.decode(text)
    assert len(text) <= TEXT_MOST
    assert told.memory == place.memory
    for offset in still:
        assert not told.queries.is_done(offset)
    assert told.tails in ({}, place.tails) or without_empty(told).tails == without_empty(place).tails


def test_place_without_its_ahead_offsets_is_not_clean() -> None:
    ahead = tuple(range(100_000_000, 100_006_000, 2))
    told = Place.decode(Place(Reached(7), Reached(50_000_000, 0, (), ahead), 16, at_ms=9, clean=True).text())
    assert not told.queries.is_done(ahead[0])
    assert (told.clean, told.at_ms) == (False, 9)


def test_what_is_done_is_below_or_ahead_and_not_open() -> None:
    at = Reached(10, 0, (3, 5), (12,))
    assert at.first == 3
    assert [offset for offset in range(14) if at.is_done(offset)] == [0, 1, 2, 4, 6, 7, 8, 9, 12]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"memory":[1]}', "recallflow"])
def test_what_is_no_place_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="place"):
        Place.decode(text)


@pytest.mark.parametrize("text", [None, "", '{"host":"vm","pid":1,"released":true}', '{"memory":[0,0,[],[]],"new":1}'])
def test_what_another_version_left_beside_an_offset_is_no_place(text: str | None) -> None:
    assert Place.found(text) is None
