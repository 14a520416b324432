"""A process that runs the flow, and dies as it is told."""

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.crash.kills import arm, stop_once_owned, take_out
from benchmarks.crash.layout import GIVE_UP_S, ROOT, SESSION_S, SETTINGS
from recallflow.brokers.options import KafkaOptions
from recallflow.flows.config import Config, RunSettings
from recallflow.flows.kafka import KafkaFlow
from recallflow.flows.topics import Topics


@dataclass(frozen=True)
class Plan:
    """What a child process does. `kill`: a point and at which pass; `stub`: a safeguard to take out; `prime`: only
    begin the deployment, as queries count from its first start on. `static`: as a static member, whose group waits for
    nobody when it was killed."""

    servers: str
    state_dir: str
    topics: dict[str, Any]
    static: bool
    kill: tuple[str, int] | None = None
    stub: str | None = None
    prime: bool = False


def child(plan: Plan) -> None:
    """Runs the flow as the plan says, until SIGTERM or the kill."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if plan.stub:
        take_out(plan.stub)
    if plan.kill:
        arm(*plan.kill)
    if plan.prime:
        stop_once_owned()
    kafka, topics = KafkaOptions(plan.servers), Topics(**plan.topics)
    run = RunSettings(instance_id="only") if plan.static else RunSettings(session_timeout_s=SESSION_S)
    KafkaFlow(Config(Path(plan.state_dir), kafka, topics, SETTINGS, run)).run()


def _die_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def spawn(plan: str, output: int) -> subprocess.Popen[bytes]:
    """Start a child process that writes to a descriptor. Tests replace this function by one that forks."""
    command = [sys.executable, "-m", "benchmarks.crash", "--child", plan]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=output)


class Child:
    """A running child process."""

    def __init__(self, plan: Plan, log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = spawn(orjson.dumps(plan).decode(), file.fileno())

    def running(self) -> bool:
        return self._process.poll() is None

    def ended(self, wanted: int, timeout_s: float = GIVE_UP_S) -> None:
        """Waits for the end. RuntimeError where it is another one than wanted."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the flow did not end within {timeout_s:.0f} s:\n{self._said()}") from None
        if code != wanted:
            raise RuntimeError(f"the flow ended with {code}, not {wanted}:\n{self._said()}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self.ended(0)

    def close(self) -> None:
        self.kill()
        if self._process.stdin:
            self._process.stdin.close()

    def _said(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])
