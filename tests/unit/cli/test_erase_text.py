"""What is said of records that remain in Kafka."""

import pytest

from recallflow.cli.erase_text import remains_line
from recallflow.connectors.kafka.remains import Remains, Retention

HOUR_MS = 3_600_000
AT_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
DELETED = ("delete",)


@pytest.mark.parametrize(
    ("retention", "said"),
    [
        (Retention(DELETED, 24 * HOUR_MS, -1, HOUR_MS), "gone by 2023-11-15T23:13:20Z at the latest, some"),
        (Retention(DELETED, 24 * HOUR_MS, 99, HOUR_MS), "at the latest, or sooner (retention.bytes=99), some"),
        (Retention(DELETED, -1, -1, HOUR_MS), "without limit of time (retention.ms=-1): until"),
        (Retention(DELETED, 2**63 - 1, -1, HOUR_MS), "gone by 9999-12-31T23:59:59.999Z at the latest"),
        (Retention(("compact",), HOUR_MS, -1, HOUR_MS), "cleanup.policy=compact: once it is compacted, the newest"),
        (Retention(("compact", "delete"), HOUR_MS, -1, HOUR_MS), "gone by 2023-11-15T00:13:20Z at the latest"),
        (None, "until when is not known"),
    ],
)
def test_until_when_records_are_kept_is_said(retention: Retention | None, said: str) -> None:
    line = remains_line(Remains("some.topic", retention, 3, AT_MS, [0]), is_memory=False)
    assert line.startswith("some.topic: 3 records, the newest of 2023-11-14T22:13:20Z; ")
    assert said in line
    assert ("compact" in line) is (retention is not None and retention.compacts)


def test_a_compacted_memory_topic_is_warned_of() -> None:
    retention = Retention(("compact",), -1, -1, HOUR_MS)
    assert "a memory topic should not be compacted" in remains_line(Remains("m", retention, 1, AT_MS), is_memory=True)


def test_a_topic_without_records_of_the_user_says_so() -> None:
    assert remains_line(Remains("some.topic", None), is_memory=False) == "some.topic: nothing"
