"""A supervisor over stand-ins for members, in a process of its own."""

import sys
from pathlib import Path

from recallflow.flows.config import Config, RawSetting, read_config
from recallflow.members import run_members
from recallflow.telemetry import set_up_logging

STAND_IN = Path(__file__).with_name("stand_in.py")
BACKOFF_S = 0.05
SECRET = "hunter2 " * 4  # of the control topic


def config(folder: Path, port: int, log_format: str) -> Config:
    given = {
        "state_dir": folder / "state", "run.processes": 2, "run.metrics_port": port, "run.log_format": log_format,
        "engine.cache_bytes": 100 * 1024 * 1024, "auth.control_secret": SECRET,
    }  # fmt: skip
    return read_config({key: RawSetting(key, str(value)) for key, value in given.items()}, {})[0]


def main(folder: str, port: str, log_format: str) -> int:
    set_up_logging(log_format)
    command = (sys.executable, str(STAND_IN), folder, "--state-dir")
    return run_members(config(Path(folder), int(port), log_format), 2, command, BACKOFF_S)
