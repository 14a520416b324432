"""Where a state directory of the enrichment flow began to write, from before the first record on: a first run that is
killed before its first snapshot has no other memory of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.partitions import part_name
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import StateError
from recallflow.state.files import read_checked, write_checked

BEGIN = "begin.json"


class Begin(NamedTuple):
    """`outputs`: by part (`part_name`), from where outputs are known by what their topics hold. By `topic:partition`:
    `sent`, up to where another directory sent what comes of results; and `answered`, which requests have their results,
    from the first up to the end of each span."""

    outputs: dict[str, int]
    sent: dict[str, int]
    answered: dict[str, list[list[int]]]

    @classmethod
    def read(cls, state_dir: Path) -> "Begin | None":
        """What the state directory began with; None where no run began yet. Raises StateError."""
        path = state_dir / BEGIN
        try:
            kept = read_checked(path)
            return cls(*(kept[name] for name in cls._fields))
        except FileNotFoundError:
            return None
        except KeyError as error:
            raise StateError(f"{path} cannot be read (it lacks {error}): start with another --state-dir") from error

    def write(self, state_dir: Path) -> None:
        write_checked(state_dir / BEGIN, self._asdict())


def ends(options: KafkaOptions, topics: tuple[str, ...], chosen: Mapping[str, object] | None = None) -> dict[str, int]:
    """By part, where it ends: where what is committed ends, or with `chosen` UNCOMMITTED all there is."""
    with TopicReader(options, chosen) as reader:
        return {part_name(*part): end for part, (_, end) in reader.spans(topics).items()}
