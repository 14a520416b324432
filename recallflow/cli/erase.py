"""Options of `recallflow erase`, whose steps are in `erase_steps.py`.

The engine erases in `operators/erase.py`, a closed state directory in `flows/directory_erasure.py`. Remaining records
in Kafka are found by `connectors/kafka/topic_erasure.py`.
"""

import argparse
from pathlib import Path

from recallflow.cli.options import ENGINE, TOPICS, add_environments, add_kafka, add_several
from recallflow.cli.parser import Commands, add_command


def add_erase(commands: Commands) -> None:
    parser = add_command(commands, "erase", run_erase)
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("user", metavar="USER")
    add_environments(parser)
    parser.add_argument("--timeout-s", type=float, default=60.0, metavar="S", help="seconds to wait (default: 60)")
    text = "also erase the person from this checkpoint; may be repeated"
    add_several(parser, "--checkpoint", "checkpoints", "DIR", text, Path)
    parser.add_argument("--compact-kafka", action="store_true", help="write tombstones to compacted topics")
    parser.add_argument("--verify", action="store_true", help="search every file for the person's data afterwards")
    parser.add_argument("--verify-only", action="store_true", help="search only, and erase nothing")
    parser.add_argument("--export", type=Path, metavar="FILE", help="search for the data of this export")
    text = "also search this folder, such as the enrichment flow's; may be repeated"
    add_several(parser, "--also", "also", "DIR", text, Path)
    add_kafka(parser, *ENGINE, *TOPICS, "topics.results", "topics.replies")


def run_erase(options: argparse.Namespace) -> int:
    """Erase a person, and report remaining data.
    Sends user.erase to Kafka, waits until the engine has applied it, and reports the remaining records of each topic
    with their expiry. With --state-dir of a directory without Kafka, the erasure is applied there. Exit code 1 if data
    was not erased, or was found.
    $ recallflow erase default user --state-dir memory --verify
    $ recallflow erase demo team-atlas --bootstrap-servers localhost:9092"""
    from recallflow.cli.erase_steps import EraseCommand

    return EraseCommand(options).run()
