"""Options of `recallflow erase`, whose steps are in `erase_steps.py`.

The engine erases in `operators/erase.py`, a closed state directory in `flows/directory_erasure.py`. Remaining records
in Kafka are found by `connectors/kafka/topic_erasure.py`.
"""

import argparse
from pathlib import Path

from recallflow.cli.kafka import TOPICS
from recallflow.cli.options import ENGINE, add_environments, add_kafka

TIMEOUT_S = 60.0


def add_erase(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "erase",
        help="erase a person, and report remaining data",
        description="Sends user.erase to Kafka, waits until the engine has applied it, and reports the remaining "
        "records of each topic with their expiry. With --state-dir of a directory without Kafka, the erasure is "
        "applied there. Exit code 1 if data was not erased, or was found.",
        examples=(
            "recallflow erase default user --state-dir memory --verify",
            "recallflow erase demo team-atlas --bootstrap-servers localhost:9092",
        ),
    )
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("user", metavar="USER")
    add_environments(parser)
    parser.add_argument(
        "--timeout-s", type=float, default=TIMEOUT_S, metavar="S", help="time limit in seconds (default: 60)"
    )
    parser.add_argument(
        "--checkpoint",
        dest="checkpoints",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="also erase the person from this checkpoint; may be repeated",
    )
    parser.add_argument("--compact-kafka", action="store_true", help="write tombstones to compacted topics")
    parser.add_argument(
        "--verify", action="store_true", help="search every file for the person's data after the erasure"
    )
    parser.add_argument("--verify-only", action="store_true", help="search only, and erase nothing")
    parser.add_argument("--export", type=Path, metavar="FILE", help="search for the data of this export")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="also search this folder, such as the enrichment flow's; may be repeated",
    )
    add_kafka(parser, *ENGINE, *TOPICS, "topics.results", "topics.replies")
    parser.set_defaults(run=run_erase)


def run_erase(options: argparse.Namespace) -> int:
    from recallflow.cli.erase_steps import EraseCommand

    return EraseCommand(options).run()
