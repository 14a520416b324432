"""The main flow on a real broker by each way to execute it: under `python -m bytewax.run`, and without Bytewax."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from benchmarks.broker import HOST, Cluster, free_ports
from benchmarks.kafka_flow import connect, create
from tests.kafka.harness import FLAGS, GIVE_UP_S, Deployment, Names, own_topics, until, watched
from tests.unit.test_without_bytewax import HIDING

WITHOUT_BYTEWAX = HIDING.format(names=("bytewax",)) + "from recallflow.cli import main; sys.exit(main(sys.argv[1:]))"
SENT = 20


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path) -> Deployment:
    made = Deployment(broker, own_topics(topics), tmp_path / "state")
    create(broker, made.topics, 2)
    return made


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/readyz", timeout=GIVE_UP_S):
            return True
    except OSError:
        return False


def test_runners_in_turn_answer_and_put_out_once(deployment: Deployment, tmp_path: Path) -> None:
    config = tmp_path / "recallflow.toml"
    names = [f'{name} = "{getattr(deployment.topics, name)}"' for name in FLAGS.values()]
    (port,) = free_ports(None)
    where = f'state_dir = "{deployment.state_dir}"', "[run]", "session_timeout_s = 6", f"metrics_port = {port}"
    kafka = "[kafka]", f'bootstrap_servers = "{deployment.broker.bootstrap_servers}"'
    config.write_text("\n".join([*where, *kafka, "[topics]", *names]))
    under_bytewax = ["-m", "bytewax.run", f"recallflow.flows.kafka:get_flow({str(config)!r})"]
    without = ["-c", WITHOUT_BYTEWAX, "run", "--config", str(config), "--create"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    client = connect(deployment.broker, deployment.topics, GIVE_UP_S)
    with client:
        for words in (under_bytewax, without, under_bytewax):
            process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, env=environment)
            with watched(process):
                until(lambda: is_ready(port))
                for number in range(deployment.sent, deployment.sent + SENT):
                    last = client.add(f"The kettle {number} is broken", user="ann", receipt=True)
                found = client.search("Which kettle is broken?", user="ann", after=last.position, k=SENT)
                deployment.sent, deployment.asked = deployment.sent + SENT, deployment.asked + 1
                process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=GIVE_UP_S)
                assert (process.returncode, len([*found])) == (0, SENT), errors.decode()
    deployment.check_outputs()
