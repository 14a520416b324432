"""Members of a group: catching up, and the places of partitions."""

import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.kafka.connection import CatchUp
from recallflow.connectors.kafka.group import Holder, Lease, await_lively, overlapping
from recallflow.connectors.kafka.place import TEXT_MOST, LogProgress, PartitionProgress

LOG, OTHER = "memory.events:0", "memory.events:1"


def started(**ends: int) -> CatchUp:
    catch_up = CatchUp()
    catch_up.aim({LOG: 0} | ends)
    return catch_up


def test_a_partition_counts_while_it_is_ours() -> None:
    catch_up = CatchUp()
    catch_up.begin(LOG, 3)
    assert catch_up.describe() == "how many records of memory are to go is not known yet"
    catch_up.aim({LOG: 5, OTHER: 2})
    assert (catch_up.to_go(), catch_up.describe()) == (2, "2 records of memory to go")
    catch_up.begin(OTHER, 1)
    assert (catch_up.to_go(), catch_up.to_go_of(OTHER)) == (3, 1)
    catch_up.end(LOG)
    assert (catch_up.to_go(), catch_up.to_go_of(LOG)) == (1, None)


def test_records_of_an_earlier_run_do_not_count() -> None:
    catch_up = started(**{LOG: 5})
    catch_up.begin(LOG, 3)
    catch_up.gave(LOG, [3, 4], 5)
    catch_up.done(LOG, (1, 2))
    assert catch_up.to_go() == 2
    catch_up.done(LOG, (3, 4))
    assert catch_up.to_go() == 0


def test_after_an_outage_it_counts_anew_and_knows_nothing_meanwhile() -> None:
    catch_up = started(**{LOG: 2})
    catch_up.begin(LOG, 2)
    assert catch_up.to_go() == 0
    catch_up.gave(LOG, [2, 3, 4], 5)
    catch_up.lose()
    assert catch_up.to_go() is None
    catch_up.aim({LOG: 4})  # asked before the last of them was there
    assert catch_up.to_go() == 3
    catch_up.aim({LOG: 9})
    assert catch_up.to_go() == 7
    catch_up.done(LOG, (2, 3, 4))
    catch_up.gave(LOG, range(5, 12), 12)
    catch_up.done(LOG, tuple(range(5, 12)))
    assert catch_up.to_go() == 0


@given(
    st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 45), st.integers(1, 7),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_progress_ends_exactly_at_the_target(records: list[bool], target: int, batch: int, draw: Random) -> None:
    offsets = [offset for offset, there in enumerate(records) if there]
    target = min(target, len(records))
    catch_up = started(**{LOG: target})
    catch_up.begin(LOG, 0)
    unfinished: list[int] = []
    for at in range(0, len(offsets), batch):
        given_now = offsets[at : at + batch]
        catch_up.gave(LOG, given_now, given_now[-1] + 1)
        unfinished += given_now
        draw.shuffle(unfinished)
        while len(unfinished) > 2:
            catch_up.done(LOG, (unfinished.pop(),))
        left = [o for o in (*unfinished, *offsets[at + batch :]) if o < target]
        assert bool(catch_up.to_go()) or not left
    catch_up.passed_over(LOG, len(records))
    while unfinished:
        assert (catch_up.to_go() != 0) == any(offset < target for offset in unfinished)
        catch_up.done(LOG, (unfinished.pop(),))
    assert catch_up.to_go() == 0


OFFSET = st.integers(0, 2**48)
OFFSETS = st.lists(OFFSET, max_size=50).map(lambda found: tuple(sorted({*found})))
REACHED = st.builds(LogProgress, OFFSET, OFFSET, OFFSETS, OFFSETS)
TAILS = st.dictionaries(st.text("abc.", min_size=1, max_size=8), st.dictionaries(st.integers(0, 30), OFFSET))
WRITERS = st.text(max_size=20)
PLACES = st.builds(
    PartitionProgress, REACHED, REACHED, st.integers(1, 1000), TAILS, OFFSET, st.booleans(), WRITERS, OFFSET
)


def without_empty(place: PartitionProgress) -> PartitionProgress:
    tails = {topic: numbers for topic, numbers in place.tails.items() if numbers}
    return replace(place, tails=tails)


@given(PLACES)
def test_a_place_is_read_as_it_was_written(place: PartitionProgress) -> None:
    assert without_empty(PartitionProgress.decode(place.encode())) == without_empty(place)


@given(PLACES, st.lists(OFFSET, max_size=2_000).map(lambda found: tuple(sorted({*found}))))
def test_text_beside_an_offset_is_bounded_and_loses_nothing(place: PartitionProgress, still: tuple[int, ...]) -> None:
    queries = place.queries._replace(open=still, ahead=tuple(one for one in place.queries.ahead if one not in still))
    place = PartitionProgress(
        place.memory._replace(open=(), ahead=()), queries, 16, place.tails, place.at_ms, False, "d"
    )
    text = place.text()
    told = PartitionProgress.decode(text)
    assert len(text) <= TEXT_MOST
    assert told.memory == place.memory
    for offset in still:
        assert not told.queries.is_done(offset)
    assert told.tails in ({}, place.tails) or without_empty(told).tails == without_empty(place).tails


def test_place_without_its_ahead_offsets_is_not_clean() -> None:
    ahead = tuple(range(100_000_000, 100_006_000, 2))
    told = PartitionProgress.decode(
        PartitionProgress(LogProgress(7), LogProgress(50_000_000, 0, (), ahead), 16, at_ms=9, clean=True).text()
    )
    assert not told.queries.is_done(ahead[0])
    assert (told.clean, told.at_ms) == (False, 9)


def test_finished_offsets_are_below_or_ahead_and_not_open() -> None:
    at = LogProgress(10, 0, (3, 5), (12,))
    assert at.first == 3
    assert [offset for offset in range(14) if at.is_done(offset)] == [0, 1, 2, 4, 6, 7, 8, 9, 12]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"memory":[1]}', "recallflow"])
def test_invalid_place_is_reported(text: str) -> None:
    with pytest.raises(ValueError, match="place"):
        PartitionProgress.decode(text)


@pytest.mark.parametrize("text", [None, "", '{"host":"vm","pid":1,"released":true}', '{"memory":[0,0,[],[]],"new":1}'])
def test_metadata_of_another_version_is_ignored(text: str | None) -> None:
    assert PartitionProgress.found(text) is None


SESSION_S = 45.0


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["own-0-3"], None),  # our own place
        (["own-4-7_9", "own-12"], None),
        (["own-4-7", "own-2_3-5"], "2,3-5"),
        (["engine", "own-", "own-a", "pod-0-3"], None),
        ([], None),
    ],
)
def test_current_owners_of_partitions_are_found(names: list[str], found: str | None) -> None:
    assert overlapping({0, 1, 2, 3}, names) == found


class Pauses(threading.Event):
    """Each wait takes its time on a clock of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now_s += timeout or 0.0
        return self.is_set()


def other(name: str, renewals: int, **fields: object) -> Holder:
    return replace(Holder("host", "there", "directory", 1, "", run=name, renewals=renewals), **fields)  # type: ignore[arg-type]


A, B = other("a", 3), other("b", 7)
WAITS: dict[str, tuple[list[list[Holder]], float]] = {
    "nobody": ([[]], 0),
    "released": ([[replace(A, released=True)]], 0),
    "active members": ([[A, B], [other("a", 4), other("b", 8)]], 2.5),
    "one silent until its partitions move": ([*([other("a", n), B] for n in range(5)), [other("a", 6)]], 12.5),
    "one silent for a session": ([[other("a", n), B] for n in range(100)], 47.5),
    "all silent": ([[A, B]], 2.5),
    "a run that renews its partitions in turn": ([[A, other("a", 4)], [A, other("a", 5)]], 2.5),
}


def wait(me: Holder, *looks: list[Holder]) -> float:
    """Return the waiting time of a newcomer in seconds. `looks`: commits of the members at each look."""
    pauses, left = Pauses(), [*looks]
    await_lively(lambda: left.pop(0) if left[1:] else left[0], me, Lease(SESSION_S, lambda: pauses.now_s), pauses)
    return pauses.now_s


@pytest.mark.parametrize(("looks", "seconds"), WAITS.values(), ids=WAITS)
def test_newcomer_waits_for_silent_members(tmp_path: Path, looks: list[list[Holder]], seconds: float) -> None:
    assert wait(Holder.here(tmp_path), *looks) == seconds


def test_member_of_the_same_directory_is_not_waited_for(tmp_path: Path) -> None:
    me = Holder.here(tmp_path)
    assert wait(me, [replace(A, directory_id=me.directory_id)]) == 0
