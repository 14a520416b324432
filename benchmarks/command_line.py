"""Command-line arguments, result files and error messages that the benchmarks share."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from benchmarks.locomo import BenchmarkError
from recallflow.errors import EmbedderError, UsageError


def quick_arguments(about: str | None, quick: str = "the same work smaller") -> ArgumentParser:
    """Return a parser of `--quick`, described by `quick`, and `--json FILE`."""
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=output_file, metavar="FILE")
    return parser


def output_file(text: str) -> Path:
    """Parse the path of a file to write. Its folder must exist before the run, not after it."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise ArgumentTypeError(f'"{text}" cannot be written: name a file in an existing folder')
    return path


def names_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return the parser of names by commas, each of them known."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := [name for name in names if name not in known]:
            raise ArgumentTypeError(f'unknown name "{unknown[0]}" (choose from {", ".join(known)})')
        return names

    return parse


def token_limits(text: str) -> list[int]:
    """Parse numbers of tokens by commas."""
    limits = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if 0 in limits:
        raise ArgumentTypeError(f'"{text}" is no list of numbers above 0: write 500,1000')
    return limits


@contextmanager
def reported_errors() -> Iterator[None]:
    """Exit with one line for an error that the user can mend: missing data, a malformed file, a missing model."""
    try:
        yield
    except (BenchmarkError, EmbedderError, UsageError) as error:
        sys.exit(str(error))


def write_json(figures: Any, file: Path | None) -> None:
    """Write figures to the file of `--json`, if one was named."""
    if file:
        file.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
