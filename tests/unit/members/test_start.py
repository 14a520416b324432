"""The number of members and the folders in which they may start."""

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from recallflow import members
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import UsageError
from recallflow.flows.config import Config, RawSetting, as_file, read_config
from recallflow.flows.settings import TopicNames
from recallflow.members import (
    check_multiple_processes,
    check_single_process,
    member_folders,
    member_name,
    process_count,
)
from recallflow.state.description import DESCRIPTION
from tests.unit.connectors.fake_consumer import FakeKafka

Cli = Callable[..., subprocess.CompletedProcess[str]]


def chosen(text: str) -> Config:
    return read_config({"run.processes": RawSetting("--processes", text)}, {})[0]


@pytest.mark.parametrize(
    ("text", "cpus", "many"), [("1", 8, 1), ("3", 1, 3), ("auto", 1, 1), ("auto", 4, 4), ("auto", 64, 6)]
)
def test_auto_is_one_per_cpu_and_partition(monkeypatch: pytest.MonkeyPatch, text: str, cpus: int, many: int) -> None:
    monkeypatch.setattr(members, "usable_cpus", lambda: cpus)
    kafka = FakeKafka(**{TopicNames().memory: 6})
    monkeypatch.setattr(members, "TopicReader", partial(TopicReader, new_consumer=kafka.consumer))
    assert process_count(chosen(text)) == many


@pytest.mark.parametrize("text", ["many", "0"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="processes"):
        chosen(text)


def test_a_folder_is_one_process_own_or_members(tmp_path: Path) -> None:
    for allowed in (check_single_process, check_multiple_processes):
        allowed(tmp_path)
        allowed(tmp_path / "new")
    own, shared = tmp_path / "own", tmp_path / "shared"
    for folder in (own, *(shared / member_name(number) for number in range(11)), shared / "member-x"):
        folder.mkdir(parents=True)
        (folder / DESCRIPTION).touch()
    (shared / "member-77").mkdir()
    assert [folder.name for folder in member_folders(shared)] == [f"member-{number:02d}" for number in range(11)]
    check_single_process(own)
    check_multiple_processes(shared)
    with pytest.raises(UsageError, match="--processes 11"):
        check_single_process(shared)
    with pytest.raises(UsageError, match="--processes 1,"):
        check_multiple_processes(own)


def test_run_refuses_folders_of_other_layouts(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "member-00").mkdir()
    (tmp_path / "member-00" / DESCRIPTION).touch()
    one = cli("run", "--state-dir", tmp_path)
    assert (one.returncode, "give --processes 2" in one.stderr) == (2, True)
    two = cli("run", "--processes", "2", "--state-dir", tmp_path / "member-00")
    assert (two.returncode, "give --processes 1" in two.stderr) == (2, True)


def test_a_members_file_holds_the_whole_configuration(tmp_path: Path) -> None:
    given = {
        "state_dir": 'a "state" \\ dir', "kafka.librdkafka.sasl.password": "hunter\n2",
        "kafka.librdkafka.log_level": "6", "topics.replies": ["a", "b"], "llm.key": "llm-hunter2",
        "llm.headers": ["x-key: y"], "run.processes": "auto", "run.deployment": "élan", "auth.secret": "s3cret " * 5,
    }  # fmt: skip
    config, _ = read_config({key: RawSetting(key, value) for key, value in given.items()}, {})
    file = tmp_path / "member.toml"
    file.write_text(as_file(config), "utf-8")
    assert read_config({}, {}, file)[0] == config


def test_partitions_of_ones_own_are_one_members(cli: Cli, tmp_path: Path) -> None:
    ended = cli("run", "--processes", "2", "--own", "0-7", "--state-dir", tmp_path)
    assert (ended.returncode, "--own selects the partitions of one member" in ended.stderr) == (2, True)
