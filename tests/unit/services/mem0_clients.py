"""mem0's own clients, and the gateway that they take for mem0."""

import importlib
import os
import re
import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from recallflow.credentials import ApiKeyText
from tests.unit.senders import api_key

LONG_AGO_MS = 60_000


def import_mem0(folder: Path) -> ModuleType:
    """Import mem0 without its telemetry, which two variables control at import."""
    os.environ["MEM0_TELEMETRY"], os.environ["MEM0_DIR"] = "False", str(folder)
    mem0 = importlib.import_module("mem0")
    from mem0.memory.telemetry import client_telemetry

    assert client_telemetry.posthog is None
    return mem0


def control_file(folder: Path, *keys: tuple[ApiKeyText, dict[str, Any]]) -> Path:
    """A file of decisions: these keys, made a while ago."""
    began_ms = time.time_ns() // 1_000_000 - LONG_AGO_MS
    lines = [api_key(key, timestamp=began_ms, **more).model_dump_json().encode() for key, more in keys]
    path = folder / "control.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def address_of(process: subprocess.Popen[Any]) -> str:
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line if isinstance(line, str) else line.decode())
        if found := re.search(r"http://[\d.:]+", lines[-1]):
            return found[0]
    raise AssertionError("".join(lines))
