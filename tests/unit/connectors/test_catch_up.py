"""What counts is what the state is through with, whatever order workers come in and whatever offsets hold no record."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.kafka.connection import CatchUp

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


def test_what_an_earlier_run_was_given_is_not_counted() -> None:
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
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.integers(0, 45),
    st.integers(1, 7),
    st.randoms(use_true_random=False),
)
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
