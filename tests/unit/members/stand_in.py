"""A member as its supervisor sees it, without an engine: it serves probes until SIGTERM, or does what a file with its
name says.

    python stand_in.py FOLDER … --config FILE
"""

import json
import os
import signal
import sys
import threading
import tomllib
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from recallflow.connectors.probes import Probes
from recallflow.process import end_with_supervisor


def main() -> int:
    folder, name = Path(sys.argv[1]), os.environ["RECALLFLOW_MEMBER"]
    settings = tomllib.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
    notes, told, stopped = folder / f"{name}.lives", folder / f"{name}.does", threading.Event()
    lives = len(notes.read_text().splitlines()) if notes.exists() else 0
    does = told.read_text().split() if told.exists() else []
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    end_with_supervisor()
    registry = CollectorRegistry()
    Counter("walnuts", "Walnuts", registry=registry).inc(lives + 1)
    run = settings["run"]
    with Probes(run["metrics_host"], run["metrics_port"], registry, lambda: "young" if "young" in does else ""):
        note = {"pid": os.getpid(), "words": sys.argv, "settings": settings, "variables": {**os.environ}}
        with notes.open("a") as file:
            file.write(json.dumps(note) + "\n")
        print(f"life {lives + 1}", file=sys.stderr, flush=True)
        if "stays" in does:
            threading.Event().wait()
        stopped.wait()
        print("last words", end="", file=sys.stderr, flush=True)
        return 0


if __name__ == "__main__":
    sys.exit(main())
