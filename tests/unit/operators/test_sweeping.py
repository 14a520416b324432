"""Python's search for cycles rests while anybody builds a past, and goes on whatever becomes of that."""

import gc

import pytest

from recallflow.operators.recall import moment
from recallflow.operators.recall.moment import Unswept
from recallflow.state.rows import Entry
from tests.unit.operators.harness import make_event, run_flow


def test_it_rests_until_the_last_one_is_through() -> None:
    unswept = Unswept()
    with unswept:
        with unswept:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_within_has_it_go_on() -> None:
    unswept = Unswept()
    with pytest.raises(ValueError, match="here"), unswept:
        raise ValueError("here")
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    unswept = Unswept()
    gc.disable()
    try:
        with unswept:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_nothing_of_what_was_read_is_left_to_look_through(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Unswept):
        left: list[list[str]] = []

        def __exit__(self, *error: object) -> None:
            self.left.append([found.id for found in gc.get_objects() if isinstance(found, Entry)])
            super().__exit__(*error)

    monkeypatch.setattr(moment, "unswept", Counting())
    ids = [f"swept{n}" for n in range(5)]
    told = [make_event("message", n, id=one, content="tea with milk") for n, one in enumerate(ids)]
    run_flow([*told, make_event("recall", 9, query="tea", as_of={"ingestion_time": 5})])
    assert len(Counting.left) == 1
    assert not set(Counting.left[0]) & set(ids)
