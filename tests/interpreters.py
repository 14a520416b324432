"""Other versions of Python that this machine has."""

import functools
import shutil
import subprocess
from pathlib import Path


@functools.cache
def interpreter(version: str) -> str | None:
    """The path of an interpreter of a version, such as 3.13, that starts."""
    of_pyenv = Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}")
    found = [shutil.which(f"python{version}"), *map(str, sorted(of_pyenv))]
    return next((path for path in found if path and _starts(path)), None)


def _starts(path: str) -> bool:
    return subprocess.run([path, "--version"], capture_output=True).returncode == 0
