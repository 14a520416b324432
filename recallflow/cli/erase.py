"""`recallflow erase`: removes a person, says what remains and until when, and looks whether anything is left."""

import argparse
from pathlib import Path

from recallflow.cli.kafka import TOPICS
from recallflow.cli.options import ENGINE, add_kafka
from recallflow.cli.person import add_person

TIMEOUT_S = 60.0


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "erase",
        help="remove a person, and see what is left",
        description="Sends user.erase to Kafka, waits until the engine has applied it, and says what remains in each "
        "topic and until when. With --state-dir of a directory that recallflow run never filled, it is applied there. "
        "It ends with 1 where something was not erased, or was found.",
        examples=(
            "recallflow erase default user --state-dir memory --verify",
            "recallflow erase demo team-atlas --bootstrap-servers localhost:9092",
        ),
    )
    add_person(parser)
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S, metavar="S", help="wait so long (default: 60)")
    parser.add_argument(
        "--checkpoint",
        dest="checkpoints",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a checkpoint to erase the person from as well; may be given often",
    )
    parser.add_argument("--compact-kafka", action="store_true", help="write tombstones to topics that are compacted")
    parser.add_argument("--verify", action="store_true", help="search every file for what was held on the person")
    parser.add_argument("--verify-only", action="store_true", help="the same, and erase nothing")
    parser.add_argument("--export", type=Path, metavar="FILE", help="search for what this export told")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="search this folder too, such as the enrichment flow's; may be given often",
    )
    add_kafka(parser, *ENGINE, *TOPICS, "topics.results", "topics.replies")
    parser.set_defaults(run=run_erase)


def run_erase(options: argparse.Namespace) -> int:
    from recallflow.cli.erasing import Erasing

    return Erasing(options).run()
