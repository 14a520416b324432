"""Compare the processor time of this tree with that of a baseline commit, and fail where it is more than 5 % worse.

    python -m benchmarks.gate [--against COMMIT] [--json FILE]

Both sides run with the same interpreter and libraries: this tree, and a git worktree of the baseline. The measured work
goes through the command line, which changes least between commits. One side follows the other in small pieces, so that
a slow moment of the machine meets both. Processor time is read from the kernel for each process, with all its threads.
The start of a process is in no figure except "import" and "first touch".

A figure fails if the lower bound of its 95 % confidence interval is above LIMIT. A deliberate loss needs a line in
benchmarks/accepted_losses.md that begins with the figure's name and names the baseline commit.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any, NamedTuple

import orjson

LIMIT = 1.05
TREE = Path(__file__).parents[1]
BASELINE = TREE / "benchmarks" / "gate_baseline"
ACCEPTED = TREE / "benchmarks" / "accepted_losses.md"
SMALL, LARGE = 1_000, 20_000  # memories of one owner
INGESTED, CHUNKS = 5_000, 10
OWNERS = 8  # whose first query is measured
PIECES, QUERIES = 15, 20  # pairs of measurements, and queries in each
LARGE_QUERIES = 5
IMPORTS = 9
NOW_MS = 1_790_000_000_000
WORDS = """
Porto Lisbon coffee walnut sister brother guitar violin garden tomato train ticket office window Ana Bela Carlos David
Elena Fred river mountain winter summer birthday dinner lunch project report meeting doctor hospital dog cat bicycle
museum concert painting novel kitchen recipe bread cheese market school teacher student exam beach holiday flight
airport hotel camera photo letter phone number address street bridge harbour island weather storm
"""
VERBS = "moved bought sold visited painted forgot likes hates needs plays cooked wrote lost found planned"


class Side(NamedTuple):
    """One of the two trees that are compared."""

    name: str
    tree: Path

    def environment(self) -> dict[str, str]:
        """Return the environment in which this side's code is imported."""
        return os.environ | {"PYTHONPATH": str(self.tree)}


class Interval(NamedTuple):
    """A median ratio of this tree to the baseline, with a 95 % confidence interval, and both medians."""

    ratio: float
    low: float
    high: float
    ours: float
    theirs: float


class Pipe:
    """A running `recallflow pipe` of one side."""

    def __init__(self, side: Side, state_dir: Path) -> None:
        command = [sys.executable, "-c", "import sys; from recallflow.cli import main; sys.exit(main())"]
        options = ["pipe", "--state-dir", str(state_dir), "--partitions", "1", "--embedder", "hash"]
        options += [] if state_dir.exists() else ["--create"]
        self._process = subprocess.Popen(
            [*command, *options], env=side.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=side.tree
        )

    def run(self, lines: Sequence[bytes]) -> float:
        """Send lines, of which the last is a query; return the processor seconds until all its answers are there."""
        asked = sum(b'"recall"' in line for line in lines)
        before = self._used_s()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for line in lines:
            self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()
        for _ in range(asked):
            answer = orjson.loads(self._process.stdout.readline())
            if answer["status"] == "error":
                raise RuntimeError(answer["error"])
        return self._used_s() - before

    def close(self) -> None:
        """End the input, and wait for the process."""
        self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"pipe ended with exit status {self._process.returncode}")

    def _used_s(self) -> float:
        # The clock of a process' processor time, as clock_getcpuclockid(3) composes its number.
        return time.clock_gettime((~self._process.pid << 3) | 2)


Sides = tuple[Side, Side]
Pairs = list[tuple[float, float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="the baseline (default: that of benchmarks/gate_baseline)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    against = chosen.against or BASELINE.read_text().split()[0]
    with ExitStack() as stack:
        baseline = stack.enter_context(worktree(against))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gate-")))
        figures = measure((Side("ours", TREE), Side("theirs", baseline)), folder)
    print(f"processor time of this tree and of {against}, in milliseconds; ratio with its 95 % confidence interval")
    failed = []
    for name, one in figures.items():
        worse = one.low > LIMIT and not is_accepted(name, against)
        failed += [name] if worse else []
        mark = "  WORSE" if worse else ""
        print(f"{name:28} {one.ours:9.3f} {one.theirs:9.3f}  {one.ratio:.3f} ({one.low:.3f} to {one.high:.3f}){mark}")
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps({name: one._asdict() for name, one in figures.items()}))
    return 1 if failed else 0


def measure(sides: Sides, folder: Path) -> dict[str, Interval]:
    """Return each figure's interval."""
    pairs: dict[str, tuple[float, Pairs]] = {}  # by name: milliseconds of a second per unit of work, and the pairs
    pairs["import"] = 1e3, [(_import_s(sides[0]), _import_s(sides[1])) for _ in range(IMPORTS + 1)][1:]
    with both(sides, folder / "small") as pipes:
        for pipe in pipes:
            pipe.run([*messages("small", SMALL), *queries("small", QUERIES, 0)])
        pieces = [queries("small", QUERIES, piece) for piece in range(1, PIECES + 1)]
        pairs[f"query, {SMALL:,} memories"] = 1e3 / QUERIES, alternate(pipes, pieces)
        size = INGESTED // CHUNKS
        chunks = [[*messages(f"other{n}", size), *queries(f"other{n}", 1, 0)] for n in range(CHUNKS)]
        pairs["message"] = 1e3 / size, alternate(pipes, chunks)
        for owner in range(OWNERS):
            for pipe in pipes:
                pipe.run([*messages(f"cold{owner}", SMALL), *queries(f"cold{owner}", 1, 0)])
    with both(sides, folder / "small") as pipes:
        for pipe in pipes:
            pipe.run(queries("small", QUERIES, 0))
        firsts = [queries(f"cold{owner}", 1, 1) for owner in range(OWNERS)]
        pairs["first touch of an owner"] = 1e3, alternate(pipes, firsts)
    with both(sides, folder / "large") as pipes:
        for pipe in pipes:
            pipe.run([*messages("large", LARGE), *queries("large", LARGE_QUERIES, 0)])
        pieces = [queries("large", LARGE_QUERIES, piece) for piece in range(1, PIECES + 1)]
        pairs[f"query, {LARGE:,} memories"] = 1e3 / LARGE_QUERIES, alternate(pipes, pieces)
    return {name: interval(found, scale) for name, (scale, found) in pairs.items()}


@contextmanager
def both(sides: Sides, state_dir: Path) -> Iterator[tuple[Pipe, Pipe]]:
    """Run one pipe of each side."""
    pipes = [Pipe(side, state_dir.with_name(f"{state_dir.name}-{side.name}")) for side in sides]
    yield pipes[0], pipes[1]
    for pipe in pipes:
        pipe.close()


def alternate(pipes: tuple[Pipe, Pipe], pieces: Sequence[Sequence[bytes]]) -> Pairs:
    """Return the processor seconds of each piece of work, (ours, theirs); which side begins changes with each."""
    found: Pairs = []
    for number, lines in enumerate(pieces):
        first = number % 2
        used = {first: pipes[first].run(lines)}
        used[1 - first] = pipes[1 - first].run(lines)
        found.append((used[0], used[1]))
    return found


def interval(pairs: Pairs, scale: float) -> Interval:
    """Return the median ratio of pairs with the confidence interval that the sign test gives."""
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    count = len(ratios)
    outside, low = 0.5**count, 0
    while outside + 0.5**count * math.comb(count, low + 1) <= 0.025:
        low += 1
        outside += 0.5**count * math.comb(count, low)
    ours, theirs = (_median([pair[side] for pair in pairs]) * scale for side in (0, 1))
    return Interval(_median(ratios), ratios[low], ratios[count - 1 - low], ours, theirs)


def is_accepted(name: str, against: str) -> bool:
    """Return whether a loss against this baseline was accepted, with its reason."""
    lines = ACCEPTED.read_text().splitlines() if ACCEPTED.exists() else []
    return any(line.startswith(f"- {name}, against {against}: ") for line in lines)


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check out a commit beside this tree for a while. Raises CalledProcessError where there is no such commit."""
    with tempfile.TemporaryDirectory(prefix="gate-baseline-") as folder:
        path = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", path, commit], cwd=TREE, check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", path], cwd=TREE, check=True)


# ---------------------------------------------------------------------- work


def messages(user: str, count: int) -> list[bytes]:
    """Return messages of a user in sessions of twenty, the same in every run."""
    random, words, verbs = Random(user), WORDS.split(), VERBS.split()
    made = []
    for number in range(count):
        said = random.choices(words, k=random.randint(4, 16))
        text = f"{random.choice(('I', 'Ana', 'My sister', 'We'))} {random.choice(verbs)} {' '.join(said)} {number}."
        event: dict[str, Any] = {
            "type": "message",
            "tenant_id": "gate",
            "user_id": user,
            "id": f"{user}-{number}",
            "role": "user",
            "session_id": f"{user}-{number // 20}",
            "timestamp": NOW_MS - (count - number) * 60_000,
            "content": text,
        }
        made.append(orjson.dumps(event))
    return made


def queries(user: str, count: int, piece: int) -> list[bytes]:
    """Return questions of a user; those of another piece are others."""
    random = Random(f"{user} {piece}")
    made = []
    for _ in range(count):
        text = f"{random.choice(('When', 'Where', 'Why'))} did Ana get the {' '.join(random.sample(WORDS.split(), 3))}?"
        event = {"type": "recall", "tenant_id": "gate", "user_id": user, "query": text, "timestamp": NOW_MS}
        made.append(orjson.dumps(event))
    return made


def _import_s(side: Side) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    command = [sys.executable, "-c", "from recallflow import Memory"]
    subprocess.run(command, env=side.environment(), cwd=side.tree, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    sys.exit(main())
