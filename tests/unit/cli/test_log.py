"""Log lines have their time, level and speaker, for people and for collectors."""

import json
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from recallflow.cli.log import JsonLines, Lines, set_up

Cli = Callable[..., subprocess.CompletedProcess[str]]


def record(level: int, text: str, *args: object) -> logging.LogRecord:
    made = logging.LogRecord("recallflow.connectors.kafka.source", level, "file", 1, text, args, None)
    made.created = 1_767_225_600.1234
    return made


def test_a_line_says_when_how_bad_who_and_what() -> None:
    line = Lines().format(record(logging.WARNING, "%s is away", "Kafka"))
    assert line == "2026-01-01T00:00:00.123Z WARNING connectors.kafka.source: Kafka is away"


def test_a_collector_gets_one_object_a_line_also_of_a_traceback() -> None:
    failed = record(logging.ERROR, "two\nlines")
    error = ValueError("what")
    failed.exc_info = (ValueError, error, None)
    line = JsonLines().format(failed)
    assert "\n" not in line
    told = json.loads(line)
    assert told.pop("message").startswith("two\nlines\nValueError: what")
    assert told == {"time": "2026-01-01T00:00:00.123Z", "level": "error", "logger": "connectors.kafka.source"}


def test_others_are_heard_only_where_something_is_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    set_up("text")
    logging.getLogger("recallflow.flows.kafka").info("ours")
    logging.getLogger("others").info("theirs")
    logging.getLogger("others").warning("their trouble")
    said = capfd.readouterr().err
    assert "INFO flows.kafka: ours" in said
    assert "WARNING others: their trouble" in said
    assert "theirs" not in said


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_ends_a_run_is_a_line_like_the_others(cli: Cli, tmp_path: Path, log_format: str) -> None:
    done = cli("run", "--state-dir", tmp_path / "s", "--standby", "-1", "--log-format", log_format)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert (json.loads(line)["message"] if log_format == "json" else line).endswith("standby must be 0 to 10, not -1")
