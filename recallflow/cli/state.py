"""`recallflow state …`, of state directories, and `recallflow checkpoints …`, of their copies in an object store."""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallflow.cli.flags import ENCRYPTION, STATE, add_actions, add_settings, at_rest, config, open_state
from recallflow.cli.output import json_line, note, table
from recallflow.cli.parser import Commands, add_command
from recallflow.errors import CheckpointError, UsageError
from recallflow.flows.runner import now_ms
from recallflow.owner import parse_ranges, ranges_of

if TYPE_CHECKING:
    from recallflow.connectors.checkpoints.generation import Manifest
    from recallflow.state.directory import StateDirectory
    from recallflow.state.encryption import AtRest
    from recallflow.state.moving import Move


def add_state(commands: Commands) -> None:
    actions = add_actions(commands, "state", "inspect and maintain state directories")
    info, state_hash = add_command(actions, "info", run_info), add_command(actions, "hash", run_hash)
    state_hash.add_argument("directories", type=Path, nargs="*", metavar="DIR", help="all directories of a deployment")
    verify, checkpoint = add_command(actions, "verify", run_verify), add_command(actions, "checkpoint", run_checkpoint)
    checkpoint.add_argument("target", type=Path, metavar="DIR", help="an empty or new folder")
    restore = add_command(actions, "restore", run_restore)
    restore.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="the checkpoint, which stays unchanged")
    add_moves(actions)
    rotate_key = add_command(actions, "rotate-key", run_rotate_key)
    new_key = rotate_key.add_mutually_exclusive_group()
    new_key.add_argument("--to-master-key-file", type=Path, metavar="FILE", help="the new key: 32 bytes in base64")
    new_key.add_argument("--to-kms-key", metavar="ID", help="the new key: an AWS KMS key by id or ARN")
    for action in (info, state_hash, verify):
        action.add_argument("--json", action="store_true", help="print as JSON")
    for action in (info, state_hash, verify, checkpoint, restore, rotate_key):
        add_settings(action, *STATE)


def run_info(options: argparse.Namespace) -> None:
    """Print settings, counts and positions.
    $ recallflow state info --state-dir memory
    $ recallflow state info --json --state-dir memory"""
    with open_state(config(options)) as directory:
        fields = _info(directory)
    if options.json:
        json_line(fields)
        return
    for name, value in fields.items():
        label = "applied, up to offset" if name == "applied" else name.replace("_", " ")  # offsets count from 0
        print(f"{label:<20} {value if not isinstance(value, dict) else ''}".rstrip())
        for source, offset in value.items() if isinstance(value, dict) else ():
            print(f"  {source:<40} {offset}")


def run_hash(options: argparse.Namespace) -> None:
    """Print a hash that is equal for equal logs.
    It is of one state directory, or of all directories of a deployment, however these distribute state partitions.
    $ recallflow state hash --state-dir memory
    $ recallflow state hash memory --json"""
    from recallflow.state.folders import format_partitions
    from recallflow.state.state_hash import combined_hash

    chosen = config(options)
    if options.directories and options.state_dir is not None:
        raise UsageError("--state-dir and DIR cannot be combined; give all directories as recallflow state hash DIR …")
    paths = options.directories or [chosen.named_state_dir()]
    result = combined_hash(paths, at_rest(chosen))
    several = {format_partitions([number]): [*map(str, copies)] for number, copies in sorted(result.copies.items())}
    if options.json:
        where = {"state_dirs": [str(path) for path in paths]} if options.directories else {"state_dir": str(paths[0])}
        json_line(where | {"hash": result.hash} | ({"several": several} if several else {}))
    else:
        print(result.hash)
    for name, (newest, *others) in several.items():
        note(f"{name} is in {newest} and {', '.join(others)}: the first has applied at least as much, and is used")


def _info(directory: "StateDirectory") -> dict[str, Any]:
    from recallflow.state import keys

    settings, partitions = directory.fingerprint, directory.existing_partitions()
    applied: dict[str, int] = {}
    for source, offset in chain.from_iterable(partition.applied.items() for partition in partitions):
        applied[source] = max(offset, applied.get(source, -1))
    return {
        "state_dir": str(directory.path), "format_version": keys.FORMAT_VERSION, "partitions": settings.partitions,
        "held": ranges_of([partition.number for partition in partitions]), "embedder": settings.embedder,
        "dimension": settings.dimension, "episode_gap_minutes": settings.episode_gap_ms / 60_000,
        "owners": sum(partition.counts.owners for partition in partitions), "memories": directory.counts.memories,
        "bytes": sum(partition.size_bytes() for partition in partitions), "applied": applied,
    }  # fmt: skip


def run_verify(options: argparse.Namespace) -> int:
    """Read all data, and report all errors.
    Exit code 1 if there are errors.
    $ recallflow state verify --state-dir engine"""
    from recallflow.state.verify import verify

    report = verify(*_directory(options))
    counts = ", ".join(f"{count} {name}" for name, count in report.records.items()) or "no records"
    searched = f"{report.partitions} state partitions: {counts}"
    fields = {"partitions": report.partitions, "records": report.records}
    return _print_problems(options, report.problems, fields, searched, "all data was read, and is consistent")


def _print_problems(
    options: argparse.Namespace, problems: Sequence[str], fields: dict[str, Any], searched: str, success: str
) -> int:
    """Print the result of a search for problems: as JSON with further `fields`, or as text. Return the exit code."""
    if options.json:
        json_line(fields | {"problems": problems})
    else:
        print(*problems, searched, f"{len(problems)} problems" if problems else success, sep="\n")
    return 1 if problems else 0


def run_checkpoint(options: argparse.Namespace) -> None:
    """Copy the directory as a checkpoint.
    Files are hard links where possible.
    $ recallflow state checkpoint backup --state-dir engine"""
    from recallflow.state.checkpoint import checkpoint

    state_dir, encryption = _directory(options)
    checkpoint(state_dir, options.target, encryption)
    print(f"{options.target}: checkpoint of {state_dir}")


def run_restore(options: argparse.Namespace) -> None:
    """Create a state directory from a checkpoint.
    $ recallflow state restore checkpoint --state-dir restored"""
    from recallflow.state.checkpoint import restore

    state_dir, encryption = _directory(options)
    restore(options.checkpoint, state_dir, encryption)
    print(f"{state_dir}: restored. recallflow run continues from there; recallflow state verify checks all data")


def _directory(options: argparse.Namespace) -> "tuple[Path, AtRest]":
    chosen = config(options)
    return chosen.named_state_dir(), at_rest(chosen)


def add_moves(actions: Commands) -> None:
    move = add_command(actions, "move", run_move)
    move.add_argument("--partitions", required=True, metavar="N-M", help="state partitions, such as 4-7 or 0,2,8-11")
    move.add_argument("--create", action="store_true", help="create the directory TO if it does not exist")
    move.add_argument("source", type=Path, metavar="FROM", help="a state directory")
    move.add_argument("target", type=Path, metavar="TO", help="another state directory with the same settings")
    split, text = add_command(actions, "split", run_split), "a directory and its state partitions"
    split.add_argument("source", type=Path, metavar="FROM", help="a state directory")
    split.add_argument("--into", required=True, nargs="+", metavar="DIR:N-M", help=text)
    merge = add_command(actions, "merge", run_merge)
    merge.add_argument("sources", type=Path, nargs="+", metavar="FROM", help="state directories")
    merge.add_argument("--into", required=True, type=Path, metavar="DIR", help="the target directory")
    for action in (move, split, merge):
        add_settings(action, *ENCRYPTION)


def run_move(options: argparse.Namespace) -> None:
    """Move state partitions to another directory.
    An interrupted move continues when the command is repeated.
    $ recallflow state move --partitions 4-7 memory other --create"""
    from recallflow.state.moving import move

    numbers = _numbers("--partitions", options.partitions)
    _print_move(move(options.source, options.target, numbers, at_rest(config(options)), create=options.create))


def run_split(options: argparse.Namespace) -> None:
    """Split a state directory into several.
    Moves state partitions to the others, which are created if they do not exist.
    $ recallflow state split memory --into left:0-7 right:8-15"""
    from recallflow.state.moving import split

    numbers_of: dict[Path, list[int]] = {}
    for text in options.into:
        path, colon, numbers = text.rpartition(":")
        if not colon or not path:
            raise UsageError(f"--into {text}: give a directory, a colon and state partitions, such as left:0-7")
        numbers_of.setdefault(Path(path), []).extend(_numbers(f"--into {path}:", numbers))
    _print_move(split(options.source, numbers_of, at_rest(config(options))))


def run_merge(options: argparse.Namespace) -> None:
    """Merge state directories into one.
    The target is created if it does not exist. Of a partition that several members of a deployment hold, the newest
    copy is moved, and the older ones stay.
    $ recallflow state merge memory --into whole"""
    from recallflow.connectors.kafka.partition import progress_of
    from recallflow.state.folders import format_partitions
    from recallflow.state.moving import merge

    moves, older = merge(options.sources, options.into, at_rest(config(options)), progress_of, now_ms=now_ms())
    for number, path, newest in older:
        print(f"{format_partitions([number])}: {path} holds an older copy than {newest}; the older copy stays")
    _print_move(moves, [copy.path for copy in older if copy.path != options.into])


def _numbers(flag: str, text: str) -> Collection[int]:
    try:
        return parse_ranges(text)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None


def _print_move(moves: "Sequence[Move]", older_copies: "Sequence[Path]" = ()) -> None:
    """Print the moved partitions, and the directories of the moves and of older copies that are now empty."""
    from recallflow.state.folders import format_partitions, unreleased_numbers

    for number, source, target in moves:
        print(f"{format_partitions([number])}: {source} → {target}")
    if not moves:
        print("no state partitions to move")
    for source in dict.fromkeys([*(move.source for move in moves), *older_copies]):
        if not unreleased_numbers(source):
            note(f"{source} has no state partitions left, and may be removed")


def run_rotate_key(options: argparse.Namespace) -> None:
    """Change the master key, without encrypting data again.
    Encrypts the directory's secret with a new master key. Give the old one with the usual options. Earlier checkpoints
    still need the old key.
    $ recallflow state rotate-key --state-dir sealed --master-key-file old.key --to-master-key-file new.key"""
    from recallflow.state.description import rewrap

    chosen = config(options)
    state_dir = chosen.named_state_dir()
    new = {"master_key_file": options.to_master_key_file, "master_key": None, "kms_key": options.to_kms_key}
    master_key = at_rest(replace(chosen, encryption=replace(chosen.encryption, **new))).master_key
    if master_key is None:
        raise UsageError("give the new master key: --to-master-key-file FILE or --to-kms-key ID")
    rewrap(state_dir, at_rest(chosen), master_key)
    print(f"{state_dir}: the master key is now {master_key.name}")


CHECKPOINTS_URL = "s3://bucket/prefix, gs://bucket/prefix or file:///folder, with pyarrow's options after a ?"
NO_CHECKPOINTS = "no checkpoints found"


def add_checkpoints(commands: Commands) -> None:
    actions = add_actions(commands, "checkpoints", "checkpoints of state partitions in an object store")
    for name, run in (("list", run_checkpoints_list), ("verify", run_checkpoints_verify)):
        action = add_command(actions, name, run)
        action.add_argument("url", metavar="URL", help=CHECKPOINTS_URL)
        action.add_argument("--json", action="store_true", help="print JSON, one object per line")


def run_checkpoints_list(options: argparse.Namespace) -> None:
    """List the generations of each state partition, newest first.
    $ recallflow checkpoints list file:checkpoints
    $ recallflow checkpoints list file:checkpoints --json"""
    from recallflow.connectors.checkpoints.store import CheckpointStore

    store = CheckpointStore.open(options.url)
    generations = [_describe(one) for number in store.partitions() for one in store.generations(number)]
    if not generations:
        note(f"{store.shown}: {NO_CHECKPOINTS}")
    if options.json:
        for fields in generations:
            json_line(fields)
    else:
        names = ("partition", "offset", "created", "deployment", "bytes", "generation")
        table(names, [[fields[name] for name in names] for fields in generations])


def run_checkpoints_verify(options: argparse.Namespace) -> int:
    """Read every object of every generation, and report all errors.
    Exit code 1 if there are errors.
    $ recallflow checkpoints verify file:checkpoints"""
    from recallflow.connectors.checkpoints.store import CheckpointStore

    store = CheckpointStore.open(options.url)
    problems, generations, checked = list[str](), 0, dict[str, str | None]()
    numbers = store.partitions()
    problems += [f"p{number:03d}: {problem}" for number in numbers for problem in store.broken(number)]
    for manifest in chain.from_iterable(map(store.generations, numbers)):
        generations += 1
        problems += [f"p{manifest.about.partition:03d}: {problem}" for problem in store.verify(manifest, checked)]
    if not (generations or problems):
        raise CheckpointError(f"{store.shown}: {NO_CHECKPOINTS}")
    fields = {"generations": generations, "objects": len(checked)}
    searched = f"{generations} generations of {len(checked)} objects"
    return _print_problems(options, problems, fields, searched, "all objects were read, and are intact")


def _describe(manifest: "Manifest") -> dict[str, object]:
    from recallflow.fields import format_time

    about = manifest.about
    return {
        "partition": about.partition, "offset": about.offset, "created": format_time(about.created_ms),
        "deployment": about.deployment, "bytes": manifest.size, "files": len(manifest.files), "source": about.source,
        "partitions": about.partitions, "state_format": about.state_format,
        "generation": manifest.name.removesuffix(".json"),
    }  # fmt: skip
