"""Python's search for cycles rests while anybody builds a past, and goes on whatever becomes of that."""

import gc

import pytest

from recallflow.operators.recall.moment import Unswept


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
