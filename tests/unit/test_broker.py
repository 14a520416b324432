"""The broker of tests and benchmarks, without starting one."""

import socket
from pathlib import Path

import pytest

from benchmarks.broker import BOOTSTRAP_VARIABLE, HOST, Broker, connect_or_start


def test_named_broker_is_used_and_never_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "kafka.example:9092")
    with connect_or_start() as cluster:
        assert cluster.bootstrap_servers == "kafka.example:9092"
        for act in (cluster.stop, cluster.start):
            with pytest.raises(RuntimeError, match=BOOTSTRAP_VARIABLE):
                act()


def test_taken_port_is_refused() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=str(port)):
            Broker(port)


@pytest.mark.parametrize("missing", ["java", "mvn"])
def test_missing_program_names_both_remedies(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if missing != "java":
        (tmp_path / "java").touch(mode=0o755)
    with pytest.raises(RuntimeError, match=f"`{missing}`.*{BOOTSTRAP_VARIABLE}.*Maven"), Broker():
        pass
