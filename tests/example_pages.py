"""The pages in examples/, as tests run them."""

import os
import re
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def commands_of(folder: str) -> list[str]:
    (block,) = re.findall(r"^```sh\n(.*?)^```", (EXAMPLES / folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    install, *commands = str(block).splitlines()
    assert install.startswith("pip install ")
    return commands


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | more
