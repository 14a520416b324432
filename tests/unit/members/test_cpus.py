"""How many CPUs a process may use, as control groups of version 2 and 1 limit it."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from recallflow.members import CGROUP_ROOT, OWN_CGROUPS, usable_cpus

V2 = "0::/kubepods/pod7/engine\n"
V1 = "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n"


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("own", "files", "many"),
    [
        (V2, {}, 8),
        (V2, {"kubepods/pod7/engine/cpu.max": "max 100000"}, 8),
        (V2, {"kubepods/pod7/engine/cpu.max": "400000 100000"}, 4),
        (V2, {"kubepods/pod7/engine/cpu.max": "350000 100000"}, 3),
        (V2, {"kubepods/pod7/engine/cpu.max": "25000 100000"}, 1),
        (V2, {"kubepods/pod7/engine/cpu.max": "400000 100000", "kubepods/cpu.max": "200000 100000"}, 2),
        ("0::/\n", {"cpu.max": "300000 100000"}, 3),  # in a container with a namespace of its own
        (V2, {"cpu.max": "5000000 100000"}, 8),
        (
            V1, {"cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1", "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000"},
            8,
        ),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "250000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 2),
    ],
)  # fmt: skip
def test_the_least_of_the_limits_holds(tmp_path: Path, own: str, files: Mapping[str, str], many: int) -> None:
    (tmp_path / "cgroup").write_text(own)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    assert usable_cpus(tmp_path / "groups", tmp_path / "cgroup") == many


def test_without_control_groups_the_scheduler_says(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path, tmp_path / "none") == 8


def test_this_machine_says_one_at_least() -> None:
    assert usable_cpus(CGROUP_ROOT, OWN_CGROUPS) >= 1
