"""The progress of a replay is kept per log, cluster and topic, and not beside the log."""

from pathlib import Path

import pytest

from recallflow.cli.publish import ReplayProgress, Target, state_home
from recallflow.errors import RecallflowError

TARGET = Target("cluster", "memory.events", "topic-1", records=100, ends=100)


def progress(folder: Path, log: str = "log", target: Target = TARGET) -> ReplayProgress:
    return ReplayProgress(log, target, {"XDG_STATE_HOME": str(folder)})


def test_the_same_log_to_the_same_topic_goes_on(tmp_path: Path) -> None:
    progress(tmp_path).save(60, 50)
    again = progress(tmp_path)
    assert (again.events, again.sent, again.emptied) == (60, 50, False)
    assert again.path.is_relative_to(tmp_path / "recallflow" / "replay")


@pytest.mark.parametrize(
    ("log", "target"),
    [
        ("other", TARGET), ("log", TARGET._replace(cluster="another")), ("log", TARGET._replace(topic="another")),
        ("log", TARGET._replace(topic_id="made anew")),
    ],
)  # fmt: skip
def test_another_log_cluster_or_topic_begins_at_the_beginning(tmp_path: Path, log: str, target: Target) -> None:
    progress(tmp_path).save(60, 50)
    other = progress(tmp_path, log, target)
    assert (other.events, other.sent, other.emptied) == (0, 0, False)


@pytest.mark.parametrize(("records", "ends"), [(0, 100), (30, 30)])
def test_topic_that_lost_records_gets_them_again(tmp_path: Path, records: int, ends: int) -> None:
    progress(tmp_path).save(60, 50)
    lost = progress(tmp_path, target=TARGET._replace(records=records, ends=ends))
    assert (lost.events, lost.sent, lost.emptied) == (0, 0, True)


def test_a_log_of_refused_events_leaves_an_empty_topic_alone(tmp_path: Path) -> None:
    progress(tmp_path).save(60, 0)
    assert progress(tmp_path, target=TARGET._replace(records=0, ends=0)).events == 60


@pytest.mark.parametrize("given", ["", "relative/path"])
def test_unset_state_home_is_the_home_folder(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_home({"XDG_STATE_HOME": given}) == tmp_path / ".local" / "state" / "recallflow"


def test_unreadable_progress_file_is_one_line(tmp_path: Path) -> None:
    made = progress(tmp_path)
    made.save(1, 1)
    made.path.write_bytes(b"{")
    with pytest.raises(RecallflowError, match=r"cannot read .*; remove it"):
        progress(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RecallflowError, match=r"cannot write .*; set XDG_STATE_HOME"):
        progress(tmp_path / "file" / "below").save(1, 1)
