"""`recallflow state move | split | merge`: partitions that go to another directory, while nobody uses either."""

import argparse
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recallflow.cli.options import ENCRYPTION, add_settings, config
from recallflow.cli.output import note
from recallflow.errors import UsageError
from recallflow.ranges import parse_ranges

if TYPE_CHECKING:
    from recallflow.state.at_rest import AtRest
    from recallflow.state.moving import Move


def add_to(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Below `recallflow state`."""
    moving = actions.add_parser(
        "move",
        help="give state partitions to another directory",
        description="Moves state partitions from one directory to another, each as a whole. What was stopped in the "
        "middle goes on when the same is done again.",
        examples=("recallflow state move --partitions 4-7 memory other --create",),
    )
    moving.add_argument("--partitions", required=True, metavar="N-M", help="which: 4-7, or 0,2,8-11")
    moving.add_argument("--create", action="store_true", help="make the directory TO, where it is not there yet")
    moving.add_argument("source", type=Path, metavar="FROM", help="a state directory")
    moving.add_argument("target", type=Path, metavar="TO", help="another one, of the same settings")
    moving.set_defaults(run=run_move)
    splitting = actions.add_parser(
        "split",
        help="give the state partitions of a directory to several",
        description="Moves state partitions of a directory to others, which are made where they are not there yet.",
        examples=("recallflow state split memory --into left:0-7 right:8-15",),
    )
    splitting.add_argument("source", type=Path, metavar="FROM", help="a state directory")
    splitting.add_argument("--into", required=True, nargs="+", metavar="DIR:N-M", help="a directory, and what it gets")
    splitting.set_defaults(run=run_split)
    merging = actions.add_parser(
        "merge",
        help="bring the state partitions of several directories into one",
        description="Moves all state partitions of directories into one, which is made where it is not there yet. Of a "
        "partition that several members of a deployment hold, the newest copy is moved, and the older ones stay.",
        examples=("recallflow state merge memory --into whole",),
    )
    merging.add_argument("sources", type=Path, nargs="+", metavar="FROM", help="state directories")
    merging.add_argument("--into", required=True, type=Path, metavar="DIR", help="the one that gets all they have")
    merging.set_defaults(run=run_merge)
    for action in (moving, splitting, merging):
        add_settings(action, *ENCRYPTION)


def run_move(options: argparse.Namespace) -> int:
    from recallflow.state.moving import move

    numbers = _numbers("--partitions", options.partitions)
    return _said(move(options.source, options.target, numbers, _at_rest(options), create=options.create))


def run_split(options: argparse.Namespace) -> int:
    from recallflow.state.moving import split

    into: dict[Path, list[int]] = {}
    for text in options.into:
        path, colon, numbers = text.rpartition(":")
        if not colon or not path:
            raise UsageError(f"--into {text}: give a directory, a colon and what it gets, such as left:0-7")
        into.setdefault(Path(path), []).extend(_numbers(f"--into {path}:", numbers))
    return _said(split(options.source, into, _at_rest(options)))


def run_merge(options: argparse.Namespace) -> int:
    from recallflow.connectors.kafka.place import progress_of
    from recallflow.state.folders import names
    from recallflow.state.moving import merge

    now_ms = time.time_ns() // 1_000_000
    moves, older = merge(options.sources, options.into, _at_rest(options), progress_of, now_ms=now_ms)
    for number, path, newest in older:
        print(f"{names([number])}: {path} holds an older copy than {newest}; it is left behind")
    return _said(moves, [one.path for one in older if one.path != options.into])


def _numbers(flag: str, text: str) -> Collection[int]:
    try:
        return parse_ranges(text)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None


def _at_rest(options: argparse.Namespace) -> "AtRest":
    from recallflow.flows.settings import open_at_rest

    return open_at_rest(config(options).encryption)


def _said(moved: "Sequence[Move]", passed_over: "Sequence[Path]" = ()) -> int:
    from recallflow.state.folders import held_numbers, names

    for number, source, target in moved:
        print(f"{names([number])}: {source} → {target}")
    if not moved:
        print("nothing was left to move")
    for source in dict.fromkeys([*(one.source for one in moved), *passed_over]):
        if not held_numbers(source):
            note(f"{source} holds no state partition any more: it may be removed")
    return 0
