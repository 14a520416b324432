"""How long it takes until the first line of one's own program can run, or the help is read: medians of whole processes.

A machine's pace is in every figure, so each has its ratio to a bare interpreter beside it; what of it is pydantic's own
shows the last line. Ways of starting take turns, so that a slow moment meets all of them, and processor time is told
apart: on a busy machine it is what compares.

    python -m benchmarks.start [--runs 11] [--python env/bin/python]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

COMMAND = "import sys; from recallflow.cli import main; sys.exit(main())"
STARTS = {
    "python -c pass": ("-c", "pass"),
    "import recallflow.client": ("-c", "import recallflow.client"),
    "from recallflow import Message": ("-c", "from recallflow import Message"),
    "from recallflow import Memory": ("-c", "from recallflow import Memory"),
    "recallflow --help": ("-c", COMMAND, "--help"),
    "recallflow ask --help": ("-c", COMMAND, "ask", "--help"),
    "import pydantic": ("-c", "import pydantic; pydantic.BaseModel"),
}
BARE = "python -c pass"

Taken = tuple[float, float]  # seconds by the clock, and of processors


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--runs", type=int, default=11, help="of each (default: 11), after one that is not counted")
    parser.add_argument("--python", default=sys.executable, help="an environment's interpreter (default: this one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    medians = measure(options.python, options.runs)
    print(f"{'':32} {'clock':>8} {'× bare':>8} {'processor':>10} {'× bare':>8}")
    for name, (clock_s, processor_s) in medians.items():
        ratios = clock_s / medians[BARE][0], processor_s / medians[BARE][1]
        print(f"{name:32} {clock_s:6.3f} s {ratios[0]:8.1f} {processor_s:8.3f} s {ratios[1]:8.1f}")
    if options.json:
        options.json.write_text(json.dumps(medians, indent=2) + "\n")


def measure(python: str, runs: int) -> dict[str, Taken]:
    """Medians of each way of starting."""
    times: dict[str, list[Taken]] = {name: [] for name in STARTS}
    for number in range(runs + 1):
        for name, words in STARTS.items():
            taken = _start([python, *words])
            if number:  # the first fills the caches of files and of bytecode
                times[name].append(taken)
    return {name: (_median(all_, 0), _median(all_, 1)) for name, all_ in times.items()}


def _start(words: Sequence[str]) -> Taken:
    before, began = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    clock_s, after = time.perf_counter() - began, getrusage(RUSAGE_CHILDREN)
    return clock_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _median(taken: Sequence[Taken], which: int) -> float:
    return statistics.median(one[which] for one in taken)


if __name__ == "__main__":
    main()
