"""`recallflow export`: everything that is held on a person."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import orjson

from recallflow.cli.options import STATE, add_settings, config
from recallflow.errors import RecallflowError
from recallflow.flows.encryption import open_at_rest
from recallflow.flows.export import export
from recallflow.state.directory import StateDirectory

CACHE_BYTES = 1024 * 1024
OWNERS_ONLY = 0o600


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "export",
        help="everything that is held on a person, as JSON lines",
        description="Writes all that a state directory, or a checkpoint, holds on a user: every version of every "
        "memory, the graph, usage, episodes, what waits. It ends with 1 where nothing is known of the user.",
    )
    add_person(parser)
    parser.add_argument("--vectors", action="store_true", help="with the numbers of vectors")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there, for nobody else to read")
    add_settings(parser, *STATE)
    parser.set_defaults(run=run_export)


def add_person(parser: argparse.ArgumentParser) -> None:
    """Who it is about."""
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("user", metavar="USER")
    parser.add_argument(
        "--environment",
        dest="environments",
        action="append",
        default=[],
        metavar="NAME",
        help="only in this one; may be given often (default: all)",
    )


def run_export(options: argparse.Namespace) -> int:
    chosen = config(options)
    with StateDirectory.existing(chosen.named_state_dir(), CACHE_BYTES, open_at_rest(chosen.encryption)) as directory:
        records = export(directory, options.tenant, options.user, options.environments, vectors=options.vectors)
        if (first := next(records, None)) is None:
            raise RecallflowError(f"nothing is held on user {options.user} of tenant {options.tenant}")
        with _written(options.out) as file:
            for record in chain([first], records):
                file.write(orjson.dumps(record) + b"\n")
    return 0


@contextlib.contextmanager
def _written(path: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a file that has its name once it is whole."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=OWNERS_ONLY)
    with new.open("wb") as file:
        yield file
    new.replace(path)
