"""Options that several commands share."""

import argparse
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recallflow.connectors.embedders import NAMES
from recallflow.decisions import History
from recallflow.errors import InvalidRecord, UsageError
from recallflow.flows.settings import Settings
from recallflow.parsing import parse_control

_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Where the state is, which model it is for, and what else shapes it."""
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="keep the state here between runs")
    parser.add_argument("--embedder", choices=NAMES, default="hash", help="embedding model (default: hash)")
    parser.add_argument("--model-path", type=Path, metavar="DIR", help="folder of a local copy of the model")
    parser.add_argument(
        "--partitions", metavar="N", help="state partitions (default: 16); the directory keeps its number"
    )
    parser.add_argument("--episode-gap-minutes", metavar="MINUTES", help="what ends an episode (default: 30); kept too")


def add_pace(parser: argparse.ArgumentParser) -> None:
    """How much memory to use, and how often to snapshot."""
    parser.add_argument("--cache-bytes", metavar="SIZE", help="owners held in memory, such as 2GiB (default: 512MiB)")
    parser.add_argument("--epoch-ms", metavar="MS", help="time between two snapshots (default: 500)")


def add_owner(parser: argparse.ArgumentParser) -> None:
    """Whose memory it is."""
    parser.add_argument("--tenant", default="default", metavar="ID", help="tenant (default: default)")
    parser.add_argument("--user", default="user", metavar="ID", help="user (default: user)")
    parser.add_argument("--environment", default="prod", metavar="NAME", help="environment (default: prod)")


def add_control(parser: argparse.ArgumentParser) -> None:
    """What tenants' operators decided."""
    told = "JSON lines of control events, each in force from its timestamp on"
    parser.add_argument("--control", type=Path, metavar="FILE", help=told)


def settings(options: argparse.Namespace) -> Settings:
    """The settings that the options and the environment name; the others keep their default. Raises UsageError."""
    given = {name: getattr(options, name, None) for name in _READ}
    read: dict[str, Any] = {name: _READ[name](name, text) for name, text in given.items() if text is not None}
    read |= similarity(os.environ)
    return Settings(embedder=options.embedder, model_path=options.model_path, **read)


def similarity(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings of `similar_to` edges that the environment names. Raises UsageError."""
    read: dict[str, Any] = {}
    for setting, (variable, kind, what) in _SIMILARITY.items():
        if text := environment.get(variable):
            try:
                read[setting] = kind(text)
            except ValueError:
                raise UsageError(f"{variable}: {text!r} is not {what}") from None
    return read


def decisions(options: argparse.Namespace) -> History:
    """What stands in the file of control events, if one is named. Raises UsageError with line and field."""
    history, path = History(), getattr(options, "control", None)
    if path is None:
        return history
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--control: cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = parse_control(line)
        except InvalidRecord as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        history.add(event.timestamp or 0, event)
    return history


def whole(name: str, text: str) -> int:
    """A whole number. Raises UsageError."""
    return int(_number(name, text, int, "a whole number"))


def fraction(name: str, text: str) -> float:
    """A number. Raises UsageError."""
    return _number(name, text, float, "a number")


def _size(name: str, text: str) -> int:
    """Bytes, with or without a unit: 536870912, 512MiB, 1.5GB."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)", text)
    if found is None or found[2].upper() not in _UNITS:
        raise UsageError(f"{_flag(name)}: {text!r} is no size; give bytes, or add KiB, MiB, GiB, KB, MB or GB")
    return round(float(found[1]) * _UNITS[found[2].upper()])


def _number(name: str, text: str, kind: Callable[[str], float], what: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{_flag(name)}: {text!r} is not {what}") from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# Setting → environment variable, and what is read from it.
_SIMILARITY: dict[str, tuple[str, Callable[[str], float], str]] = {
    "similarity_threshold": ("SIMILARITY_EDGE_THRESHOLD", float, "a number"),
    "similarity_max_k": ("SIMILARITY_EDGE_MAX_K", int, "a whole number"),
    "similarity_max_per_memory": ("SIMILARITY_EDGE_MAX_PER_MEMORY", int, "a whole number"),
}
_READ: dict[str, Callable[[str, str], float]] = {
    "partitions": whole,
    "episode_gap_minutes": fraction,
    "cache_bytes": _size,
    "epoch_ms": whole,
}
