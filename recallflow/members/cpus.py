"""How many CPUs this process may use: what the scheduler grants it, within the limits of its control groups."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def usable_cpus(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Whole ones, at least 1: of a limit of 3.5 CPUs a fourth process would only be throttled."""
    granted = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([granted, *_limits(groups, own)])))


def _limits(groups: Path, own: Path) -> Iterator[float]:
    """The limits of the groups that the process is in, and of those around them. In a container the path that it knows
    may be the machine's, which is not there: then the outermost folder is its own."""
    with suppress(OSError):  # no Linux, or no /proc
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            folder = groups / controllers
            for part in ("", *Path(path).parts[1:]):
                folder /= part
                yield from _limit(folder)


def _limit(folder: Path) -> Iterator[float]:
    """What one group says, of version 2 or 1; nothing where it sets none."""
    with suppress(OSError, ValueError):  # "max"
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)
    with suppress(OSError):
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            yield quota_us / int((folder / "cpu.cfs_period_us").read_text())
