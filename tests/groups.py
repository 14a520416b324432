"""Test groups: a run without options leaves out groups that need services, many processes, or minutes of time.

    python -m pytest                    the default group
    python -m pytest --quick            the core: language, operators and state, without property tests and slow ones
    python -m pytest --group kafka      the default group and one other
    python -m pytest --full             all groups
    python -m pytest tests/kafka        one folder; a path that you name is never left out

A folder named like a group belongs to it. Elsewhere a test joins a group by its marker: `@pytest.mark.processes`.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings
from uv import find_uv_bin

from benchmarks.locomo import MissingDataError, shared
from tests.interpreters import interpreter
from tools.broker import BOOTSTRAP_VARIABLE, BOTH_WAYS

ROOT = Path(__file__).parent
GROUPS = {
    "kafka": "the engine, its commands and its clients on a real Kafka broker",
    "faults": "kills, outages and lost disks on a real Kafka broker",
    "browser": "the explorer in headless Chromium",
    "release": "archives, wheels, the image, other Python versions, tests of frameworks",
    "examples": "examples of the documentation and of the command help, in processes of their own",
    "models": "real embedding models and conversations from RECALLFLOW_SHARED",
    "processes": "commands in processes of their own: kills, signals, streams, locks",
    "exhaustive": "properties with many examples, inputs of a gigabyte, large stores",
}
SLOW_MARKERS, SLOW_FIXTURES = {"hypothesis", "slow"}, {"cli", "start", "starts", "llm_server"}
QUICK_ROOMS = ("language", "operators", "state")  # folders of tests/unit
BUDGET_S = 5.0  # of one test in the default group

Markers = Mapping[str, pytest.Mark]

# Property tests draw nothing at random: the same tests of the same code try the same examples.
settings.register_profile("default", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("full", settings.get_profile("default"), max_examples=100)


def share(part: float) -> int:
    """Return this part of the profile's examples, for a property whose examples are expensive (or cheap: over 1)."""
    return max(3, round(part * settings().max_examples))


class Selection:
    """The groups that a run includes, and its tests that took longer than the budget."""

    def __init__(self, config: pytest.Config) -> None:
        self.groups = {*GROUPS} if config.getoption("--full") else {*config.getoption("--group")}
        self._quick = config.getoption("--quick")
        named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
        self._named = [path for path in named if ROOT in path.parents and path != ROOT / "unit"]
        self.groups |= {name for name in GROUPS if any(path.is_relative_to(ROOT / name) for path in named)}
        self._slow: list[tuple[float, str]] = []

    def needs_broker(self) -> bool:
        """Return whether the run has tests on a real broker, and one is at hand."""
        return not self.groups.isdisjoint(("kafka", "faults")) and has_broker()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Skip the import of folders whose group is left out."""
        room, name = collection_path.parent, collection_path.name
        if self._quick and room == ROOT / "unit":
            return True if name not in (*QUICK_ROOMS, "conftest.py") else None
        return True if room == ROOT and name in GROUPS and name not in self.groups else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect tests of other groups, and skip or fail tests whose requirements are missing."""
        deselected = []
        for item in items:
            markers = {marker.name: marker for marker in item.iter_markers()}
            group = group_of(item, markers)
            if not self._includes(item, group, markers):
                deselected.append(item)
                continue
            item.user_properties.append(("group", group))
            missing = missing_requirement(item, group, markers)
            if missing and ("python" in markers or not config.getoption("--require-all")):
                item.add_marker(pytest.mark.skip(f"left out: {missing}"))
        if deselected:
            config.hook.pytest_deselected(items=deselected)
            left = {*map(id, deselected)}
            items[:] = [item for item in items if id(item) not in left]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.duration > BUDGET_S and ("group", "") in map(tuple, report.user_properties):
            self._slow.append((report.duration, report.nodeid))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the groups that were left out, and the tests over the budget."""
        if self._slow:
            terminalreporter.section(f"over the budget of {BUDGET_S:.0f} s per test", yellow=True)
            for seconds, name in sorted(self._slow, reverse=True):
                terminalreporter.line(f"{seconds:6.1f} s  {name}")
        if left_out := [name for name in GROUPS if name not in self.groups]:
            terminalreporter.section("groups left out")
            for name in left_out:
                terminalreporter.line(f"{name:<11} {GROUPS[name]}")
            terminalreporter.line("run one with: python -m pytest --group NAME; all with: python -m pytest --full")

    def _names(self, path: Path) -> bool:
        """Return whether the command line names the path or a folder below `tests` that holds it."""
        return any(path.is_relative_to(named) for named in self._named)

    def _includes(self, item: pytest.Item, group: str, markers: Markers) -> bool:
        if self._names(item.path):
            return True
        if self._quick:  # no whole commands, engines or servers
            fixtures = getattr(item, "fixturenames", ())
            return not group and SLOW_MARKERS.isdisjoint(markers) and SLOW_FIXTURES.isdisjoint(fixtures)
        return not group or group in self.groups


def group_of(item: pytest.Item, markers: Markers) -> str:
    """Return a test's group, or the empty string for the default group."""
    folder = item.path.relative_to(ROOT).parts[0]
    return folder if folder in GROUPS else next((name for name in markers if name in GROUPS), "")


def missing_requirement(item: pytest.Item, group: str, markers: Markers) -> str:
    """Return what this machine lacks for a test and the remedy, or the empty string."""
    if "python" in markers and interpreter(version := markers["python"].args[0]) is None:
        return f"needs Python {version}, on the PATH or of pyenv"
    if group in ("kafka", "faults") and not has_broker():
        return f"needs a Kafka broker; {BOTH_WAYS}"
    if group == "models" and not has_models():
        return "needs real models; set RECALLFLOW_SHARED to their folder"
    if "index" in markers and not has_index():
        return "needs the package index, which does not answer"
    needs = [marker.args[0] for marker in item.iter_markers("needs")] if "needs" in markers else []
    absent = [program for program in needs if shutil.which(program) is None]
    return f"needs {absent[0]} on the PATH; .ci/run installs it" if absent else ""


def has_broker() -> bool:
    """Return whether a Kafka is named, or one can be assembled here."""
    return bool(os.environ.get(BOOTSTRAP_VARIABLE)) or None not in (shutil.which("java"), shutil.which("mvn"))


@functools.cache
def has_models() -> bool:
    """Return whether the folder that RECALLFLOW_SHARED names, or its default, exists."""
    try:
        shared("models")
    except MissingDataError:
        return False
    return True


@functools.cache
def has_index() -> bool:
    """Return whether the package index answers, wherever the environment says that it is."""
    request = [find_uv_bin(), "pip", "compile", "--quiet", "--no-cache", "--no-deps", "-"]
    return subprocess.run(request, input=b"six", capture_output=True).returncode == 0
