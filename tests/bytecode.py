"""Keeps compiled modules, so that neither workers nor started commands compile the product again.

Some machines set PYTHONDONTWRITEBYTECODE. Each process then compiles 600 files (1 s), and pytest rewrites the
assertions of all test modules (10 s). The compiled files go to `.pytest_cache` in that case, not beside the sources.
"""

import os
import sys
from pathlib import Path

if sys.dont_write_bytecode:
    folder = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
