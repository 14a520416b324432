"""Failures of our own code are logged in one record each, with few tracebacks."""

import logging

import pytest

from recallflow.errors import TRACE_EVERY_S, DefectLog


def fail(kind: type[Exception]) -> Exception:
    with pytest.raises(kind) as caught:
        raise kind
    return caught.value


def test_repeated_place_has_one_traceback_in_its_time(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    defects = DefectLog(logging.getLogger("defects"), lambda: now_s)
    for number, (kind, at_s) in enumerate(
        [(KeyError, 0), (KeyError, 1), (TypeError, 1), (KeyError, TRACE_EVERY_S - 1), (KeyError, TRACE_EVERY_S)]
    ):
        now_s = at_s
        defects.report(f"e{number}", "a test", fail(kind))
    assert [record.__dict__["error_id"] for record in caplog.records] == ["e0", "e1", "e2", "e3", "e4"]
    assert ["raise kind" in record.getMessage() for record in caplog.records] == [True, False, True, False, True]
    assert all("e0" in record.getMessage() for record in (caplog.records[1], caplog.records[3]))
