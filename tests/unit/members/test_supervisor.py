"""A supervisor over real processes: they end with it, start again without it being asked, and are seen as one."""

import json
import os
import re
import select
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.members.supervised import SECRET
from tools.broker import free_ports

pytestmark = pytest.mark.processes

Start = Callable[..., subprocess.Popen[bytes]]

SCRIPT = "import sys; from tests.unit.members.supervised import main; sys.exit(main(*sys.argv[1:]))"
ROOT = Path(__file__).parents[3]
GIVE_UP_S = 60.0
FIRST, SECOND = "member-00", "member-01"


class Site:
    """A supervisor of two members, with their instructions, notes and output."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.folder, self._start = folder, start
        (self.port,) = free_ports(None)
        self.lines: list[str] = []

    def does(self, name: str, what: str) -> None:
        (self.folder / f"{name}.does").write_text(what)

    def start(self, log_format: str = "text", **variables: str) -> subprocess.Popen[bytes]:
        words = (str(self.folder), str(self.port), log_format)
        return self._start(*words, script=SCRIPT, PYTHONPATH=str(ROOT), **variables)

    def running(self, log_format: str = "text", **variables: str) -> subprocess.Popen[bytes]:
        process = self.start(log_format, **variables)
        self.says(process, "life 1", 2)
        return process

    def says(self, process: subprocess.Popen[bytes], what: str, times: int = 1) -> None:
        assert process.stderr is not None
        while sum(what in line for line in self.lines) < times:
            line = process.stderr.readline().decode()
            assert line, self.lines
            self.lines.append(line.rstrip("\n"))

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        assert process.stderr is not None
        self.lines += process.stderr.read().decode().splitlines()
        return process.wait(GIVE_UP_S)

    def stopped(self, process: subprocess.Popen[bytes]) -> int:
        process.terminate()
        return self.ended(process)

    def lives(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / f"{name}.lives").read_text().splitlines()]

    def pids(self) -> list[int]:
        return [life["pid"] for name in (FIRST, SECOND) for life in self.lives(name)]

    def ask(self, path: str, accept: str = "") -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=GIVE_UP_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def site(tmp_path: Path, start: Start) -> Site:
    return Site(tmp_path, start)


def gone(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor) as process:
        return bool(select.select([process], [], [], GIVE_UP_S)[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_all_members_with_their_last_lines(site: Site, number: signal.Signals) -> None:
    process = site.running()
    # Ctrl-C goes to every process of the terminal's foreground group, and must reach members once.
    assert len({os.getpgid(pid) for pid in (process.pid, *site.pids())}) == 3
    process.send_signal(number)
    assert site.ended(process) == 0
    for name in (FIRST, SECOND):
        assert [line for line in site.lines if line.startswith(name)] == [f"{name}: life 1", f"{name}: last words"]
    assert all(map(gone, site.pids()))
    assert sum("stopping: members finish their current batch" in line for line in site.lines) == 1


def test_every_line_of_a_json_log_names_its_member(site: Site) -> None:
    assert site.stopped(site.running("json")) == 0
    said = [json.loads(line) for line in site.lines]
    assert {(one.get("member"), one["message"]) for one in said} >= {(FIRST, "life 1"), (SECOND, "last words")}
    assert all({"time", "level", "logger", "message"} <= one.keys() for one in said)


def test_a_second_signal_ends_all_at_once(site: Site) -> None:
    site.does(FIRST, "stays")
    process = site.running()
    process.terminate()
    site.says(process, "stopping")
    process.terminate()
    assert process.wait(GIVE_UP_S) == 128 + signal.SIGTERM
    assert all(map(gone, site.pids()))


def test_members_end_with_a_supervisor_that_was_killed(site: Site) -> None:
    process = site.running()
    process.kill()
    assert process.wait(GIVE_UP_S) == -signal.SIGKILL
    assert all(map(gone, site.pids()))


def test_metrics_of_all_are_there_with_their_names(site: Site) -> None:
    process = site.running()
    for accept, family in (("", "walnuts_total"), ("application/openmetrics-text", "walnuts")):
        status, text = site.ask("/metrics", accept)
        assert status == 200
        for name in (FIRST, SECOND):
            assert f'walnuts_total{{member="{name}"}} 1.0' in text
            assert f'recallflow_member_up{{member="{name}"}} 1.0' in text
        assert text.count(f"# TYPE {family} counter") == 1
        assert 'process_resident_memory_bytes{member="supervisor"}' in text
    assert (site.ask("/readyz"), site.ask("/livez")) == ((200, "ready\n"), (200, "alive\n"))
    assert site.stopped(process) == 0


def test_one_is_ready_when_all_are(site: Site) -> None:
    site.does(FIRST, "young")
    process = site.running()
    assert (site.ask("/readyz"), site.stopped(process)) == ((503, f"not ready: {FIRST}: young\n"), 0)


def test_unresponsive_member_does_not_block_metrics(site: Site) -> None:
    process = site.running()
    first = site.pids()[0]
    os.kill(first, signal.SIGSTOP)
    text = site.ask("/metrics")[1]
    assert f'recallflow_member_up{{member="{FIRST}"}} 0.0' in text
    assert f'recallflow_ready{{member="{FIRST}"}} 0.0' in text
    assert f'walnuts_total{{member="{SECOND}"}} 1.0' in text
    assert site.ask("/readyz") == (503, f"not ready: {FIRST}: does not answer\n")
    os.kill(first, signal.SIGCONT)
    assert (site.ask("/readyz"), site.stopped(process)) == ((200, "ready\n"), 0)


def test_members_share_one_configuration_without_shown_secrets(site: Site) -> None:
    variables = {"RECALLFLOW_ENGINE_SYNC_MS": "77", "SIMILARITY_EDGE_MAX_K": "7", "ELSE": "kept"}
    process = site.running(**variables)
    for name in (FIRST, SECOND):
        (life,) = site.lives(name)
        folder = site.folder / "state" / name
        assert life["settings"]["state_dir"] == str(folder)
        assert life["settings"]["run"]["processes"] == 1
        assert re.fullmatch(rf"[\w.-]+-[0-9a-f]{{12}}-{name}", life["settings"]["run"]["instance_id"])
        assert life["settings"]["engine"]["cache_bytes"] == 50 * 1024 * 1024
        assert life["settings"]["auth"]["control_secret"] == SECRET
        assert life["words"][life["words"].index("--state-dir") + 1] == str(folder)
        assert SECRET not in f"{life['words']}{life['variables']}"
        assert not {"RECALLFLOW_ENGINE_SYNC_MS", "SIMILARITY_EDGE_MAX_K"} & life["variables"].keys()
        assert (life["variables"]["ELSE"], life["variables"]["RECALLFLOW_MEMBER"]) == ("kept", name)
    assert site.stopped(process) == 0


def test_two_supervisors_do_not_share_a_folder(site: Site, tmp_path: Path, start: Start) -> None:
    first, other = site.running(), Site(tmp_path, start)
    assert other.ended(other.start()) == 1
    assert "in use by" in other.lines[-1]
    assert (len(site.pids()), site.stopped(first)) == (2, 0)
