"""Compare the processor time of this tree with that of a baseline commit, and fail where it is more than 5 % worse.

    python -m benchmarks.gate [--against COMMIT] [--json FILE]

The baseline is the last landed commit: the newest one that HEAD shares with origin/main. Where git knows none but HEAD
itself, it is the commit that the last "baseline" line of benchmarks/accepted_losses.md names.

Both sides run with the same interpreter and libraries: this tree, and the files of the baseline. The work is sent to
`recallflow pipe` and to a program that uses `Memory`, which change least between commits. One side follows the other in
pieces of some milliseconds, so that a slow moment of the machine meets both, in several processes, as the layout of
memory differs between processes. Processor time is read from the kernel for each process, with all its threads. The
start of a process is in "import" alone.

A figure fails if the lower bound of its 95 % confidence interval is above LIMIT. A deliberate loss needs a line
"- FIGURE: REASON" in benchmarks/accepted_losses.md that the baseline does not have. The exit status is 1 for a failed
figure, and 3 where git has no baseline, as in a shallow clone.
"""

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from resource import RUSAGE_CHILDREN, getrusage
from statistics import fmean, median, stdev
from typing import Any, NamedTuple, Self

import orjson

LIMIT = 1.05
TRIM = 10  # of so many ratios one is left out at each end
DEVIATIONS = 2.1  # half a 95 % interval, for 20 degrees of freedom
NO_BASELINE = 3  # exit status
TREE = Path(__file__).parents[1]
ACCEPTED = "benchmarks/accepted_losses.md"
LANDED = "origin/main"
IMPORTS = 20
ROUNDS = 4  # processes of each side
SMALL, LARGE = 1_000, 20_000  # memories of one owner
OWNERS = 5  # of SMALL memories, new in a round; every later process asks them for the first time
PIECE = 50  # messages
QUERIES = 100  # that are measured in a round, after some that warm up
LARGE_QUERIES = 20
WARM_UP = 4  # queries
NOW_MS = 1_790_000_000_000
WORDS = re.findall(
    r"\w+",
    """
Porto Lisbon coffee walnut sister brother guitar violin garden tomato train ticket office window Ana Bela Carlos David
Elena Fred river mountain winter summer birthday dinner lunch project report meeting doctor hospital dog cat bicycle
museum concert painting novel kitchen recipe bread cheese market school teacher student exam beach holiday flight
airport hotel camera photo letter phone number address street bridge harbour island weather storm
""",
)
VERBS = [
    "moved",
    "bought",
    "sold",
    "visited",
    "painted",
    "forgot",
    "likes",
    "hates",
    "needs",
    "plays",
    "cooked",
    "wrote",
]
PIPE = """
import sys
from recallflow.cli import main
options = ["--receipts", "--create", "--partitions", "1", "--embedder", "hash"]
sys.exit(main(["pipe", *options, "--state-dir", sys.argv[1]]))
"""
ASKER = """
import json, sys
from recallflow import Memory
with Memory(sys.argv[1], tenant="gate", embedder="hash") as memory:
    for line in sys.stdin:
        query = json.loads(line)
        memory.search(query["query"], user=query["user_id"])
        print('{"status": "ok"}', flush=True)
"""


class NoBaselineError(Exception):
    """Git has no commit to compare with."""


class Side(NamedTuple):
    """One of the two trees that are compared."""

    name: str
    tree: Path

    def environment(self) -> dict[str, str]:
        """Return the environment in which this side's code is imported."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return kept | {"PYTHONPATH": str(self.tree)}


class Interval(NamedTuple):
    """A mean ratio of this tree to the baseline, with a 95 % confidence interval, and both medians."""

    ratio: float
    low: float
    high: float
    ours: float
    theirs: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]], scale: float = 1.0) -> Self:
        """Return the trimmed geometric mean of the ratios of pairs (ours, theirs), and its interval (Yuen, 1974)."""
        logs = sorted(math.log(ours / theirs) for ours, theirs in pairs)
        count = len(logs)
        cut = count // TRIM
        mean = fmean(logs[cut : count - cut])
        winsorised = [min(max(one, logs[cut]), logs[count - 1 - cut]) for one in logs]
        error = stdev(winsorised) * math.sqrt(count - 1) / math.sqrt((count - 2 * cut) * (count - 2 * cut - 1))
        ours, theirs = (median(pair[side] for pair in pairs) * scale for side in (0, 1))
        return cls(
            math.exp(mean), math.exp(mean - DEVIATIONS * error), math.exp(mean + DEVIATIONS * error), ours, theirs
        )


class Process:
    """A running program of one side that answers lines of JSON."""

    def __init__(self, side: Side, program: str, state_dir: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, str(state_dir)],
            env=side.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=side.tree,
        )

    def run(self, lines: Sequence[bytes]) -> float:
        """Send lines, of which the last has an answer; return the processor seconds until all answers are there."""
        answered = sum(b'"recall"' in line or b'"receipt"' in line for line in lines)
        before = self._used_s()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for line in lines:
            self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()
        for _ in range(answered):
            answer = orjson.loads(self._process.stdout.readline())
            if answer.get("status") == "error":
                raise RuntimeError(answer["error"])
        return self._used_s() - before

    def close(self) -> None:
        """End the input, and wait for the process."""
        self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"the process ended with exit status {self._process.returncode}")

    def _used_s(self) -> float:
        # The clock of a process' processor time, as clock_getcpuclockid(3) composes its number.
        return time.clock_gettime((~self._process.pid << 3) | 2)


class Comparison:
    """Measured pairs of processor seconds, by figure."""

    def __init__(self, sides: tuple[Side, Side], folder: Path) -> None:
        self._sides = sides
        self._folder = folder
        self._pairs = defaultdict[str, list[tuple[float, float]]](list)
        self._units: dict[str, int] = {}

    def intervals(self) -> dict[str, Interval]:
        """Return the interval of each figure, in milliseconds of a unit."""
        return {name: Interval.of(pairs, 1e3 / self._units[name]) for name, pairs in self._pairs.items()}

    @contextmanager
    def processes(self, program: str, name: str) -> Iterator[tuple[Process, Process]]:
        """Run a program of both sides, each over its own state directory of this name."""
        ours, theirs = (Process(side, program, self._folder / f"{name}-{side.name}") for side in self._sides)
        yield ours, theirs
        for process in (ours, theirs):
            process.close()

    def measure(self, name: str, pair: tuple[Process, Process], pieces: Iterable[Sequence[bytes]], units: int) -> None:
        """Send pieces of work to both processes in turn; each piece is `units` of the figure's unit."""
        for lines in pieces:
            self._add(name, units, lambda side, lines=lines: pair[side].run(lines))  # type: ignore[misc]

    def measure_imports(self) -> None:
        """Measure the import of `Memory`, after one that compiles the modules."""
        for side in (0, 1):
            self._import_s(side)
        for _ in range(IMPORTS):
            self._add("import", 1, self._import_s)

    def _add(self, name: str, units: int, seconds: Callable[[int], float]) -> None:
        """Measure both sides; the first of them changes with each pair."""
        first = len(self._pairs[name]) % 2
        used = {first: seconds(first)}
        used[1 - first] = seconds(1 - first)
        self._pairs[name].append((used[0], used[1]))
        self._units[name] = units

    def _import_s(self, side: int) -> float:
        before = getrusage(RUSAGE_CHILDREN)
        command = [sys.executable, "-c", "from recallflow import Memory"]
        subprocess.run(command, env=self._sides[side].environment(), cwd=self._sides[side].tree, check=True)
        after = getrusage(RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="the baseline")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    accepted = (TREE / ACCEPTED).read_text()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gate-")))
        try:
            against = chosen.against or find_baseline(accepted)
            extract(against, folder / "baseline")
        except NoBaselineError as error:
            print(f"the performance gate was not run: {error}", file=sys.stderr)
            return NO_BASELINE
        figures = compare((Side("ours", TREE), Side("theirs", folder / "baseline")), folder)
        earlier = folder / "baseline" / ACCEPTED
        failed = find_losses(figures, accepted, earlier.read_text() if earlier.exists() else "")
    print(f"processor time of this tree and of {against}, in milliseconds; ratio with its 95 % confidence interval")
    for name, one in figures.items():
        mark = "  WORSE" if name in failed else ""
        print(f"{name:28} {one.ours:9.3f} {one.theirs:9.3f}  {one.ratio:.3f} ({one.low:.3f} to {one.high:.3f}){mark}")
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps({name: one._asdict() for name, one in figures.items()}))
    return 1 if failed else 0


def compare(sides: tuple[Side, Side], folder: Path) -> dict[str, Interval]:
    """Return each figure's interval."""
    comparison = Comparison(sides, folder)
    comparison.measure_imports()
    cold: list[str] = []  # owners of earlier processes
    for number in range(ROUNDS):
        with comparison.processes(PIPE, "small") as pair:
            if number == 0:
                send(pair, messages("warm", SMALL))
            send(pair, queries("warm", WARM_UP, 0))
            comparison.measure("first touch of an owner", pair, [queries(owner, 1, number) for owner in cold], 1)
            asked = [[query] for query in queries("warm", QUERIES, number + 1)]
            comparison.measure(f"query, {SMALL:,} memories", pair, asked, 1)
            for owner in (f"cold {number} {one}" for one in range(OWNERS)):
                lines = messages(owner, SMALL)
                parts = [lines[start : start + PIECE] for start in range(0, SMALL, PIECE)]
                comparison.measure("message", pair, parts, PIECE)
                cold.append(owner)
        with comparison.processes(ASKER, "small") as pair:
            send(pair, queries("warm", WARM_UP, 0))
            comparison.measure("first touch of an owner", pair, [queries(owner, 1, number) for owner in cold], 1)
            comparison.measure("query through Memory", pair, asked, 1)
    for number in range(ROUNDS):
        with comparison.processes(PIPE, "large") as pair:
            if number == 0:
                send(pair, messages("large", LARGE))
            send(pair, queries("large", WARM_UP, 0))
            asked = [[query] for query in queries("large", LARGE_QUERIES, number + 1)]
            comparison.measure(f"query, {LARGE:,} memories", pair, asked, 1)
    return comparison.intervals()


def send(pair: tuple[Process, Process], lines: Sequence[bytes]) -> None:
    """Send the same lines to both processes."""
    for process in pair:
        process.run(lines)


def find_losses(figures: Mapping[str, Interval], accepted: str, earlier: str) -> list[str]:
    """Return the names of figures that are worse, but those that `accepted` names in lines that `earlier` lacks."""
    added = {*accepted.splitlines()} - {*earlier.splitlines()}
    named = {line.removeprefix("- ").partition(": ")[0] for line in added if re.fullmatch(r"- .+: \S.*", line)}
    return [name for name, one in figures.items() if one.low > LIMIT and name not in named]


def find_baseline(accepted: str) -> str:
    """Return the commit to compare with.

    It is HEAD for a tree with changes, else the last landed commit, else the commit of the last baseline line. Raise
    NoBaselineError without all of them.
    """
    try:
        if _git("status", "--porcelain", "--untracked-files=no"):
            return "HEAD"
        shared = _git("merge-base", "HEAD", LANDED).strip()
        if shared != _git("rev-parse", "HEAD").strip():
            return shared
    except NoBaselineError:
        pass  # a clone without LANDED
    if not (named := re.findall(r"^- baseline ([0-9a-f]{8,40}): \S", accepted, re.MULTILINE)):
        raise NoBaselineError(f'{ACCEPTED} has no line "- baseline COMMIT: REASON"')
    return str(named[-1])


def extract(commit: str, folder: Path) -> None:
    """Write the files of a commit into a new folder. Raise NoBaselineError where git does not have it."""
    archive = folder.with_suffix(".tar")
    _git("archive", f"--output={archive}", commit)
    folder.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=TREE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoBaselineError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


# ---------------------------------------------------------------------- work


def messages(user: str, count: int) -> list[bytes]:
    """Return messages of a user in sessions of twenty, the same in every run; each PIECE ends with a receipt."""
    random, made = Random(user), list[bytes]()
    for number in range(count):
        said = random.choices(WORDS, k=random.randint(4, 16))
        text = f"{random.choice(('I', 'Ana', 'My sister', 'We'))} {random.choice(VERBS)} {' '.join(said)} {number}."
        scope = {"tenant_id": "gate", "user_id": user, "session_id": f"{user}-{number // 20}"}
        event: dict[str, Any] = {"type": "message", "id": f"{user}-{number}", "role": "user", "content": text} | scope
        event["timestamp"] = NOW_MS - (count - number) * 60_000
        made.append(orjson.dumps(event | {"receipt": True} if (number + 1) % PIECE == 0 else event))
    return made


def queries(user: str, count: int, piece: int) -> list[bytes]:
    """Return questions of a user; those of another piece are others."""
    random = Random(f"{user} {piece}")
    made = []
    for _ in range(count):
        text = f"{random.choice(('When', 'Where', 'Why'))} did Ana get the {' '.join(random.sample(WORDS, 3))}?"
        event = {"type": "recall", "tenant_id": "gate", "user_id": user, "query": text, "timestamp": NOW_MS}
        made.append(orjson.dumps(event))
    return made


if __name__ == "__main__":
    sys.exit(main())
