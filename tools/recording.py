"""The output of a command as a picture of a terminal: `python -m tools.recording recallflow demo`.

It writes docs/images/demo-light.svg and demo-dark.svg, for light and dark themes."""

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI, TerminalTheme
from rich.text import Text

FOLDER = Path(__file__).parents[1] / "docs" / "images"
COLUMNS, LINES = 96, 30
LIGHT = TerminalTheme(
    (255, 255, 255),
    (28, 36, 48),
    [
        (28, 36, 48),
        (194, 24, 91),
        (15, 125, 90),
        (150, 90, 0),
        (40, 70, 200),
        (130, 50, 160),
        (0, 110, 130),
        (86, 97, 115),
    ],
    [
        (86, 97, 115),
        (194, 24, 91),
        (15, 125, 90),
        (150, 90, 0),
        (40, 70, 200),
        (130, 50, 160),
        (0, 110, 130),
        (28, 36, 48),
    ],
)
THEMES = {"light": LIGHT, "dark": DIMMED_MONOKAI}
FETCHED_FONT = re.compile(r"@font-face \{.*?\}", re.S)  # no font is loaded from other hosts


def shown(command: list[str]) -> str:
    """Return the output of a command with colours, cut to the lines of the terminal."""
    terminal = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    done = subprocess.run(command, env=os.environ | terminal, capture_output=True, text=True, check=True)
    return "\n".join([f"$ {' '.join(command)}", *done.stdout.splitlines()[: LINES - 1]])


def drawn(text: str, title: str, theme: TerminalTheme) -> str:
    """Return an SVG of a terminal with a text."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text))
    return FETCHED_FONT.sub("", console.export_svg(title=title, theme=theme, unique_id="demo")).replace(
        "Fira Code, ", ""
    )


def main(command: list[str]) -> None:
    text = shown(command)
    for name, theme in THEMES.items():
        (FOLDER / f"demo-{name}.svg").write_text(drawn(text, " ".join(command), theme))


if __name__ == "__main__":
    main(sys.argv[1:] or ["recallflow", "demo"])
