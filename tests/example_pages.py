"""The pages in examples/, as tests run them."""

import os
import re
import shlex
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
FOLDERS = ("agent_loop", "chat_service", "year_of_logs")


def commands_of(folder: str) -> list[str]:
    """What a page says to type after the installation."""
    (block,) = re.findall(r"^```sh\n(.*?)^```", (EXAMPLES / folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    install, *commands = str(block).splitlines()
    assert install.startswith("pip install ")
    return commands


def words_of(command: str) -> list[str]:
    return shlex.split(command)


def environment(**more: str) -> dict[str, str]:
    """Where a page's commands are found."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | more
