"""pyproject.toml says everything; this stops a build from a checkout that cannot hold the package's links."""

import sys
from pathlib import Path

from setuptools import setup

FOLDERS = ("flows", "operators", "state", "connectors")

if not all(Path(__file__).with_name("src").joinpath("recallflow", folder).is_dir() for folder in FOLDERS):
    sys.exit(
        "src/recallflow and recallflow/flows, operators, state and connectors are links to folders, and this checkout "
        "has text files in their place. Let git make links, and check out anew: git config core.symlinks true && git "
        "checkout -f HEAD (on Windows, in developer mode)."
    )

setup()
