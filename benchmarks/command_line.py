"""Command-line arguments and result files that the benchmarks share."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import orjson


def quick_arguments(about: str | None, quick: str = "the same work smaller") -> ArgumentParser:
    """Return a parser of `--quick`, described by `quick`, and `--json FILE`."""
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def write_json(figures: Any, file: Path | None) -> None:
    """Write figures to the file of `--json`, if one was named."""
    if file:
        file.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
