"""How long it takes until the first line of one's own program, or of the help, can run: medians of whole processes.

A machine's pace is in every figure, so each has its ratio to a bare interpreter beside it; what of it is pydantic's own
shows the last line. Ways of starting take turns, so that a slow moment meets all of them.

    python -m benchmarks.start [--runs 11] [--max-client-s 0.3] [--max-help-s 1]

With a bound, it ends with 1 where the median is above it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STARTS = {
    "python -c pass": ("-c", "pass"),
    "import recallflow.client": ("-c", "import recallflow.client"),
    "from recallflow import Message": ("-c", "from recallflow import Message"),
    "from recallflow import Memory": ("-c", "from recallflow import Memory"),
    "recallflow --help": ("-m", "recallflow", "--help"),
    "recallflow ask --help": ("-m", "recallflow", "ask", "--help"),
    "import pydantic": ("-c", "import pydantic; pydantic.BaseModel"),
}
BARE = "python -c pass"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--runs", type=int, default=11, help="of each (default: 11), after one that is not counted")
    parser.add_argument("--python", default=sys.executable, help="an environment's interpreter (default: this one)")
    parser.add_argument("--max-client-s", type=float, help="the most that importing the client may take")
    parser.add_argument("--max-help-s", type=float, help="the most that the help may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    medians = measure(options.python, options.runs)
    for name, median_s in medians.items():
        print(f"{name:32} {median_s:6.3f} s  {median_s / medians[BARE]:5.1f} × bare")
    if options.json:
        options.json.write_text(json.dumps(medians, indent=2) + "\n")
    bounds = {"import recallflow.client": options.max_client_s, "recallflow --help": options.max_help_s}
    over = [name for name, most_s in bounds.items() if most_s is not None and medians[name] > most_s]
    print(*(f"over its bound: {name}" for name in over), sep="\n", file=sys.stderr, end="\n" if over else "")
    return 1 if over else 0


def measure(python: str, runs: int) -> dict[str, float]:
    """Median seconds of each way of starting."""
    times: dict[str, list[float]] = {name: [] for name in STARTS}
    for number in range(runs + 1):
        for name, words in STARTS.items():
            began = time.perf_counter()
            subprocess.run([python, *words], check=True, stdout=subprocess.DEVNULL)
            if number:  # the first fills the caches of files and of bytecode
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in times.items()}


if __name__ == "__main__":
    sys.exit(main())
