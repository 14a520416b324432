"""How long a partition is silent while it moves: members join, leave and are killed, on a real broker.

    python -m benchmarks.rebalance [--runs 3] [--partitions 16] [--out FILE]

Four members of a toy deployment send of all their partitions all the time. The silence is from the last send of one
owner to the first of the next; of a partition that stays it is the longest pause between two sends.
"""

import argparse
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from benchmarks.broker import connect_or_start
from benchmarks.toy_member import Line, read

SESSION_S = 6.0
MEMBERS = 4
GIVE_UP_S = 60.0
QUIET_S = 2.0  # of regular sending before and after what is measured

Member = subprocess.Popen[str]


class Deployment:
    """Members, and what they wrote."""

    def __init__(self, servers: str, topics: tuple[str, str], directory: Path, partitions: int) -> None:
        self._where = [servers, f"group-{topics[0]}", *topics, str(SESSION_S)]
        self._directory = directory
        self._partitions = partitions
        self._path = directory / "lines"
        self._path.touch()
        self._started = 0
        self.members: list[Member] = []

    def join(self, *more: str) -> None:
        self._started += 1
        words = [*self._where, str(self._directory / str(self._started)), str(self._path)]
        command = [sys.executable, "-m", "benchmarks.toy_member", *words, *more]
        self.members.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))

    def leave(self) -> None:
        self.members.pop(0).communicate("\n")

    def kill(self) -> None:
        member = self.members.pop(0)
        member.kill()
        member.wait()

    def begin_again(self) -> None:
        """One is killed, and its supervisor starts another."""
        self.kill()
        self.join()

    def die_joining(self) -> None:
        """A member joins and is killed before its first partition; the group misses it a session later."""
        self.join("--dies-joining")
        self.members.pop().wait()
        time.sleep(SESSION_S)

    def measured(self, happens: Callable[[], None]) -> dict[str, list[int]]:
        """Milliseconds: silences of partitions that moved, longest pauses of those that stayed."""
        self.await_sends()
        since_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        happens()
        self.await_sends()
        spans: dict[int, list[Line]] = {}
        for line in read(self._path):
            if line.event == "send" and line.at_s > since_s - QUIET_S:
                spans.setdefault(line.partition, []).append(line)
        found: dict[str, list[int]] = {"moved": [], "stayed": []}
        for lines in spans.values():
            steps = [*pairwise(lines)]
            moves = [(a, b) for a, b in steps if a.tenure != b.tenure]
            kind = "moved" if moves else "stayed"
            found[kind].append(round(1000 * max(b.at_s - a.at_s for a, b in moves or steps)))
        return {kind: sorted(values) for kind, values in found.items()}

    def await_sends(self) -> None:
        """Returns once every partition has been sent of for a while by the members that are there, and all have a
        share."""
        deadline_s = time.monotonic() + GIVE_UP_S
        pids = {str(member.pid) for member in self.members}
        while time.monotonic() < deadline_s:
            time.sleep(QUIET_S)
            until_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            recent = [line for line in read(self._path) if line.at_s > until_s - QUIET_S]
            tenures = {line.tenure for line in recent}
            sent = {line.partition for line in recent}
            if len(tenures) == len(sent) == self._partitions and {one.partition(".")[0] for one in tenures} == pids:
                return
        raise RuntimeError(f"not every partition is worked on by {sorted(pids)} within {GIVE_UP_S:.0f} s")

    def end(self) -> None:
        for member in self.members:
            member.kill()
            member.communicate()


def run(servers: str, topics: tuple[str, str], partitions: int) -> dict[str, dict[str, list[int]]]:
    with TemporaryDirectory() as directory:
        deployment = Deployment(servers, topics, Path(directory), partitions)
        try:
            for _ in range(MEMBERS - 1):
                deployment.join()
            return {
                "join": deployment.measured(deployment.join),
                "leave": deployment.measured(deployment.leave),
                "kill": deployment.measured(deployment.kill),
                "kill + join": deployment.measured(deployment.begin_again),
                "join + kill": deployment.measured(deployment.die_joining),
            }
        finally:
            deployment.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    chosen = parser.parse_args()
    results = []
    with connect_or_start() as broker:
        for number in range(chosen.runs):
            suffix = uuid.uuid4().hex[:12]
            topics = f"memory.events-{suffix}", f"queries-{suffix}"
            broker.create_topics(dict.fromkeys(topics, chosen.partitions))
            results.append(run(broker.bootstrap_servers, topics, chosen.partitions))
            for event, found in results[-1].items():
                for kind, values in found.items():
                    median, worst = (values[len(values) // 2], values[-1]) if values else (0, 0)
                    figures = f"median {median:6} ms  worst {worst:6} ms"
                    print(f"run {number + 1}  {event:12} {kind:7} {len(values):3}  {figures}")
    if chosen.out:
        chosen.out.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
