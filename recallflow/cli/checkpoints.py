"""`recallflow checkpoints list | verify`: state partitions in an object store."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from recallflow.cli.output import json_line, note, table
from recallflow.errors import CheckpointError

if TYPE_CHECKING:
    from recallflow.connectors.checkpoints.manifest import Manifest
    from recallflow.connectors.checkpoints.store import CheckpointStore

URL = "s3://bucket/prefix, gs://bucket/prefix or file:///folder, with pyarrow's options after a ?"
NOTHING = "no checkpoints found"


def add_checkpoints(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("checkpoints", help="checkpoints of state partitions in an object store")
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    listing = actions.add_parser(
        "list",
        help="list the generations of each state partition",
        description="Prints the generations of each state partition, newest first.",
        examples=(
            "recallflow checkpoints list file:checkpoints",
            "recallflow checkpoints list file:checkpoints --json",
        ),
    )
    verifying = actions.add_parser(
        "verify",
        help="read every object, and report all errors",
        description="Reads every object of every generation, and reports all errors. Exit code 1 if there are errors.",
        examples=("recallflow checkpoints verify file:checkpoints",),
    )
    for action, run in ((listing, run_list), (verifying, run_verify)):
        action.add_argument("url", metavar="URL", help=URL)
        action.set_defaults(run=run)
    listing.add_argument("--json", action="store_true", help="print one JSON object per line")
    verifying.add_argument("--json", action="store_true", help="print as JSON")


def run_list(options: argparse.Namespace) -> int:
    store = _opened(options)
    found = [_shown(manifest) for manifest in _generations(store)]
    if not found:
        note(f"{store.shown}: {NOTHING}")
    if options.json:
        for one in found:
            json_line(one)
    else:
        names = ("partition", "offset", "created", "deployment", "bytes", "generation")
        table(names, [[one[name] for name in names] for one in found])
    return 0


def run_verify(options: argparse.Namespace) -> int:
    store = _opened(options)
    problems, generations, known = list[str](), 0, dict[str, str | None]()
    for number in store.partitions():
        problems += [f"p{number:03d}: {problem}" for problem in store.broken(number)]
    for manifest in _generations(store):
        generations += 1
        problems += [f"p{manifest.about.partition:03d}: {one}" for one in store.verify(manifest, known)]
    if not (generations or problems):
        raise CheckpointError(f"{store.shown}: {NOTHING}")
    if options.json:
        json_line({"generations": generations, "objects": len(known), "problems": problems})
    else:
        for problem in problems:
            print(problem)
        print(f"{generations} generations of {len(known)} objects")
        print(f"{len(problems)} problems" if problems else "all objects were read, and are intact")
    return 1 if problems else 0


def _opened(options: argparse.Namespace) -> "CheckpointStore":
    from recallflow.connectors.checkpoints.store import CheckpointStore

    return CheckpointStore.open(options.url)


def _generations(store: "CheckpointStore") -> "Iterator[Manifest]":
    for number in store.partitions():
        yield from store.generations(number)


def _shown(manifest: "Manifest") -> dict[str, object]:
    from recallflow.fields import format_time

    about = manifest.about
    return {
        "partition": about.partition,
        "offset": about.offset,
        "created": format_time(about.created_ms),
        "deployment": about.deployment,
        "bytes": manifest.size,
        "files": len(manifest.files),
        "source": about.source,
        "partitions": about.partitions,
        "state_format": about.state_format,
        "generation": manifest.name.removesuffix(".json"),
    }
