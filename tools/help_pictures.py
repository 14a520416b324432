"""Pictures of help texts in terminals of two widths, dark and light: `python -m tools.help_pictures FOLDER`."""

import io
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI
from rich.text import Text

from recallflow.cli.commands import commands

SHOWN = {"help": "recallflow --help", "help-ask": "recallflow ask --help"}
THEMES = {"dark": DIMMED_MONOKAI, "light": DEFAULT_TERMINAL_THEME}


def main(folder: Path) -> None:
    """Write NAME-COLUMNS-THEME.svg for each text, width and theme."""
    os.environ["FORCE_COLOR"] = "1"
    os.environ["TERM"] = "xterm-256color"
    parser = commands()
    for columns in (80, 120):
        os.environ["COLUMNS"] = str(columns)
        for name, line in SHOWN.items():
            one = next(one for one in [parser, *parser.subparsers()] if one.prog == line.removesuffix(" --help"))
            shown = Text.from_ansi(one.format_help())
            for theme, colours in THEMES.items():
                console = Console(file=io.StringIO(), record=True, width=columns)
                console.print(shown, soft_wrap=True)
                picture = console.export_svg(title=line, theme=colours)
                (folder / f"{name}-{columns}-{theme}.svg").write_text(picture, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
