"""Topics known to a state directory, and when they are described again."""

import logging
from pathlib import Path

import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException

from recallflow.connectors.kafka.admin import TopicDescription
from recallflow.connectors.kafka.connection import Watch
from recallflow.errors import SourceError, StateError
from recallflow.flows.topic_checks import TopicRegistry
from recallflow.state.description import TOPICS

READ = ("memories", "queries", "control")
FLAGS = ("--memory-topic", "--query-topic", "--control-topic")
WRITTEN = ("responses", "control")


def found(**partitions: int) -> dict[str, TopicDescription]:
    counts = dict.fromkeys((*READ, *WRITTEN), 2) | partitions
    return {topic: TopicDescription(f"{topic}-1", count) for topic, count in counts.items()}


def known(path: Path, there: dict[str, TopicDescription], read: tuple[str, ...] = READ) -> TopicRegistry:
    return TopicRegistry.open(path, there, dict(zip(FLAGS, read, strict=True)))


@pytest.mark.parametrize("topic", READ)
def test_an_input_of_another_id_is_another_topic(tmp_path: Path, topic: str) -> None:
    known(tmp_path, found())
    with pytest.raises(SourceError, match=topic):
        known(tmp_path, found() | {topic: TopicDescription("another", 2)})
    known(tmp_path, found())  # what was refused has changed nothing


@pytest.mark.parametrize(
    "read",
    [
        ("other", "queries", "control"), ("memories", "other", "control"), ("memories", "queries", "other"),
        ("queries", "memories", "control"),
    ],
)  # fmt: skip
def test_a_directory_of_other_topics_is_refused_with_both_names(tmp_path: Path, read: tuple[str, ...]) -> None:
    known(tmp_path, found())
    there = found(other=2)
    flag, was, now = next(one for one in zip(FLAGS, READ, read, strict=True) if one[1] != one[2])
    with pytest.raises(SourceError, match=rf"{was}.*{now}.*{flag} {was}"):
        known(tmp_path, there, read)
    known(tmp_path, there)  # what was refused has changed nothing


def test_an_output_topic_made_anew_is_taken_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    known(tmp_path, found())
    for _ in range(2):
        again = known(tmp_path, found() | {"responses": TopicDescription("another", 3)})
        assert again.ids["responses"] == "another"
    assert len(caplog.messages) == 1
    assert "responses was recreated" in caplog.text


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    known(tmp_path, found())
    path = tmp_path / TOPICS
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"read": {}}))
    with pytest.raises(StateError, match=TOPICS):
        known(tmp_path, found())


def test_added_partitions_are_reported_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    told: list[int] = []
    watch = Watch(lambda: found(queries=5), found())
    watch.call(lambda there: told.append(there["queries"].partitions))
    watch.look()
    watch.look()
    assert told == [5, 5]
    assert (watch.added["queries"], watch.added["memories"]) == (3, 0)
    assert caplog.messages == ["queries has 5 partitions, and had 2"]


def test_failed_description_is_retried() -> None:
    def away() -> dict[str, TopicDescription]:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    watch = Watch(away, found())
    watch.look()
    assert watch.failure() is None


def test_a_topic_made_anew_stops_the_flow(tmp_path: Path) -> None:
    watch = Watch(lambda: found() | {"memories": TopicDescription("another", 2)}, found())
    watch.call(known(tmp_path, found()).check)
    watch.look()
    assert "memories was deleted and recreated" in str(watch.failure())
