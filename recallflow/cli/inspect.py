"""`recallflow state …`: what a state directory holds."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallflow.cli import moving, rotate, upkeep
from recallflow.cli.options import STATE, add_settings, config
from recallflow.cli.output import json_line, note
from recallflow.errors import UsageError
from recallflow.ranges import ranges_of

if TYPE_CHECKING:
    from recallflow.state.directory import StateDirectory

CACHE_BYTES = 1024 * 1024


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("state", help="look into a state directory")
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    info = actions.add_parser(
        "info",
        help="settings, counts, positions",
        description="Prints the settings that shaped a state directory, what is in it, and up to where it was filled.",
        examples=("recallflow state info --state-dir memory", "recallflow state info --json --state-dir memory"),
    )
    info.set_defaults(run=run_info)
    hashed = actions.add_parser(
        "hash",
        help="equal for equal logs",
        description="Prints a hash of all that is in a state directory, or in those of one deployment together: equal "
        "logs give equal hashes, however the state partitions are spread.",
        examples=("recallflow state hash --state-dir memory", "recallflow state hash memory --json"),
    )
    hashed.add_argument("directories", type=Path, nargs="*", metavar="DIR", help="all directories of a deployment")
    hashed.set_defaults(run=run_hash)
    upkeep.add_to(actions)
    moving.add_to(actions)
    rotate.add_to(actions)
    for action in (info, hashed):
        action.add_argument("--json", action="store_true", help="print as JSON")
        add_settings(action, *STATE)


def run_info(options: argparse.Namespace) -> int:
    with _opened(options) as directory:
        found = _info(directory)
    if options.json:
        json_line(found)
        return 0
    for name, value in found.items():
        label = "applied, up to offset" if name == "applied" else name.replace("_", " ")  # offsets count from 0
        print(f"{label:<20} {value if not isinstance(value, dict) else ''}".rstrip())
        for inner, number in value.items() if isinstance(value, dict) else ():
            print(f"  {inner:<40} {number}")
    return 0


def run_hash(options: argparse.Namespace) -> int:
    from recallflow.flows.settings import open_at_rest
    from recallflow.state.combined import combined_hash
    from recallflow.state.folders import names

    chosen = config(options)
    if options.directories and options.state_dir is not None:
        raise UsageError("name every directory in the same way: recallflow state hash DIR DIR …")
    paths = options.directories or [chosen.named_state_dir()]
    found = combined_hash(paths, open_at_rest(chosen.encryption))
    if options.json:
        several = {names([number]): [str(path) for path in held] for number, held in sorted(found.several.items())}
        where = {"state_dirs": [str(path) for path in paths]} if options.directories else {"state_dir": str(paths[0])}
        json_line(where | {"hash": found.hash} | ({"several": several} if several else {}))
    else:
        print(found.hash)
    for number, (counted, *others) in sorted(found.several.items()):
        more = ", ".join(map(str, others))
        note(f"{names([number])} is in {counted} and {more}: the first has applied as much or more, and counts")
    return 0


def _opened(options: argparse.Namespace) -> "StateDirectory":
    from recallflow.flows.settings import open_at_rest
    from recallflow.state.directory import StateDirectory

    chosen = config(options)
    return StateDirectory.existing(chosen.named_state_dir(), CACHE_BYTES, open_at_rest(chosen.encryption))


def _info(directory: "StateDirectory") -> dict[str, Any]:
    from recallflow.state import keys

    settings = directory.fingerprint
    partitions = directory.existing_partitions()
    found: dict[str, Any] = {
        "state_dir": str(directory.path),
        "format_version": keys.FORMAT_VERSION,
        "partitions": settings.partitions,
        "held": ranges_of([partition.number for partition in partitions]),
        "embedder": settings.embedder,
        "dimension": settings.dimension,
        "episode_gap_minutes": settings.episode_gap_ms / 60_000,
        "owners": sum(partition.counts.owners for partition in partitions),
        "memories": directory.counts.memories,
        "bytes": 0,
        "applied": {},
    }
    for partition in partitions:
        found["bytes"] += partition.size_bytes()
        for source, offset in partition.applied.items():
            found["applied"][source] = max(offset, found["applied"].get(source, -1))
    return found
