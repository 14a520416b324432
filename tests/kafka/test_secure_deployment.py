"""One deployment with credentials, signed decisions, encryption, a quota and an access record, under kills and an
erasure."""

import base64
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks.broker import Cluster
from recallflow.client import QueryFailed, QueryTimeout, RecallClient
from recallflow.flows.settings import TopicNames
from recallflow.verbs.results import Found
from tests.kafka.harness import Deployment, Names, own_topics, read_topic, until, watched

Command = Callable[..., subprocess.CompletedProcess[str]]

CONTROL_SECRET = "what decisions are signed with, and nobody else has"
ANN = "ann.of.green.gables@example.com"  # long enough to be told from chance in a file
SAID = [f"{word} {number} is what Ann likes" for number, word in enumerate(("walnut", "lantern", "harbour"))]
BOBS = "violin is what Bob plays"
WORDS = ("walnut", "lantern", "harbour", "violin", "likes", ANN)
ALLOWED = 4  # memories of a user


@dataclass
class Secure:
    engine: Deployment
    command: Command
    config: Path

    def run(self, *words: str | Path) -> str:
        done = self.command(*words, "--config", self.config)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def give(self, api_key: str) -> None:
        """Our own commands send it from now on."""
        self.config.write_text(self.config.read_text().replace("[auth]", f'[auth]\napi_key = "{api_key}"'))

    def client(self, tenant_id: str, api_key: str | None = None) -> RecallClient:
        return self.engine.client(tenant_id, api_key=api_key, timeout_s=30.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        process = self.engine.start()
        with watched(process):
            yield
            assert process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()

    def codes(self) -> list[str]:
        letters = [dict(one.headers()) for one in read_topic(self.engine.broker, self.engine.topics.dead_letters)]
        return [one["error.code"].decode() for one in letters]

    def written(self) -> bytes:
        messages = [one for topic in self.engine.topics.outputs() for one in read_topic(self.engine.broker, topic)]
        return b"\n".join(repr((one.key(), one.value(), one.headers())).encode() for one in messages)


@pytest.fixture
def secure(broker: Cluster, topics: Names, tmp_path: Path, command: Command) -> Secure:
    requests, results = topics("enrichment.requests"), topics("enrichment.results")
    own = replace(own_topics(topics), audit=topics("audit.log"), enrichment=requests, results=results)
    key, config = tmp_path / "master.key", tmp_path / "recallflow.toml"
    key.write_bytes(base64.b64encode(bytes(range(32))))
    config.write_text(f"""
state_dir = "{tmp_path / "s"}"

[kafka]
bootstrap_servers = "{broker.bootstrap_servers}"

[topics]
{_named(own)}

[auth]
mode = "required"
control_secret = "{CONTROL_SECRET}"

[encryption]
master_key_file = "{key}"
""")
    made = Secure(Deployment(broker, own, tmp_path / "s", flags=("--config", str(config))), command, config)
    made.run("topics", "create", "--partitions", "2")
    return made


def _named(topics: TopicNames) -> str:
    names = ("memory", "queries", "control", "responses", "receipts", "enrichment", "results", "dead_letters", "audit")
    return "\n".join(f'{name} = "{getattr(topics, name)}"' for name in names)


def contents(found: Found) -> list[str]:
    return sorted(memory.content for memory in found)


def answered(client: RecallClient, user_id: str) -> list[str]:
    """Return a user's memories once the engine answers and the key is valid."""
    found: list[list[str]] = []

    def is_answered() -> bool:
        try:
            found.append(contents(client.search("What is it?", user=user_id, k=50, timeout_s=2.0)))
        except QueryTimeout:
            return False
        except QueryFailed as failed:
            if failed.error.code != "unauthenticated":
                raise
            return False
        return True

    until(is_answered)
    return found[0]


def shows_only(wanted: list[str], found: Found) -> bool:
    """Return whether an answer is current; one that is behind must be empty."""
    shown = contents(found)
    assert shown in ([], wanted)
    return shown == wanted


def refused(client: RecallClient, user_id: str) -> str:
    with pytest.raises(QueryFailed) as error:
        client.search("What is it?", user=user_id)
    for word in WORDS:
        assert word not in str(error.value)
    return error.value.error.code


def test_protected_deployment_survives_kills_and_an_erasure(secure: Secure, tmp_path: Path) -> None:
    key, anns_key, strangers_key, operators_key = (
        secure.run("keys", "create", *words).strip()
        for words in (("acme",), ("acme", "--end-user", ANN), ("globex",), ("*",))
    )
    secure.run("quota", "set", "acme", "memories_per_user", str(ALLOWED))
    with (
        secure.client("acme", key) as acme,
        secure.client("acme", anns_key) as ann,
        secure.client("acme", strangers_key) as stranger,
        secure.client("acme") as nobody,
        secure.client("globex", strangers_key) as globex,
    ):
        with secure.running():
            assert answered(acme, ANN) == []
            for text in SAID:
                acme.add(text, user=ANN)
            acme.add(BOBS, user="bob")
            # Others try. What they write comes before what is asked for below.
            assert (refused(stranger, ANN), refused(nobody, ANN), refused(ann, "bob")) == (
                "unauthenticated", "unauthenticated", "forbidden",
            )  # fmt: skip
            for other, user in ((stranger, ANN), (nobody, ANN), (ann, "bob")):
                other.add("something that is not theirs to say", user=user)
            extra = [acme.add(f"extra {number}", user=ANN) for number in range(3)]
            assert contents(acme.search("What?", user=ANN, k=50, after=extra[-1])) == ["extra 0", *sorted(SAID)]
            assert contents(globex.search("What is it?", user=ANN)) == []
            assert answered(ann, ANN) == ["extra 0", *sorted(SAID)]
            until(lambda: len(secure.codes()) >= 8)
            assert sorted(secure.codes()) == [*["forbidden"] * 2, *["over_quota"] * 2, *["unauthenticated"] * 4]
        # Killed: nothing that anybody said can be read on disk, and all of it is there after a start.
        assert found_words(tmp_path / "s") == []
        with secure.running():
            assert answered(acme, ANN) == ["extra 0", *sorted(SAID)]
            assert answered(acme, "bob") == [BOBS]
            nobodys = secure.command("erase", "acme", ANN, "--config", secure.config)
            assert (nobodys.returncode, nobodys.stdout) == (1, "")
            assert "the erasure was refused: unauthenticated" in nobodys.stderr
            assert answered(ann, ANN) == ["extra 0", *sorted(SAID)]
            secure.give(operators_key)
            said = secure.run("erase", "acme", ANN, "--verify", "--timeout-s", "25")
            assert f"user {ANN} of tenant acme is erased" in said
            assert re.search(rf"^  {re.escape(str(secure.engine.topics.audit))}: [1-9]\d* records, ", said, re.M)
            assert said.count("nothing was found\n") == 1
            assert answered(acme, ANN) == []
        # Killed once more: nothing that the person said, and no name, is in the directory, nor is it told.
        assert secure.run("erase", "acme", ANN, "--verify-only").count("nothing was found\n") == 1
        told_of = secure.run("export", "acme", ANN, "--state-dir", tmp_path / "s").splitlines()
        assert [json.loads(one)["type"] for one in told_of] == ["erased"]
        # The whole log is read again, into a directory that knows nothing of what was.
        for folder in (tmp_path / "s").glob("p*"):
            shutil.rmtree(folder)
        assert secure.run("erase", "acme", ANN, "--verify-only").count("nothing was found\n") == 1
        with secure.running():
            told = acme.add("lighthouse", user=ANN)
            until(lambda: shows_only(["lighthouse"], acme.search("What?", user=ANN, k=50, after=told)))
            until(lambda: answered(acme, "bob") == [BOBS])  # his partition may still be catching up
            assert refused(stranger, ANN) == "unauthenticated"
    audited = [one.value() for one in read_topic(secure.engine.broker, str(secure.engine.topics.audit))]
    assert len(audited) >= 9
    assert {json.loads(one)["principal"] for one in audited} >= {key.split("_")[1], anns_key.split("_")[1], None}
    for word in set(WORDS) - {ANN}:
        assert not any(word.encode() in one for one in audited)
    written = secure.written()
    for secret in (key, anns_key, strangers_key, operators_key):
        assert secret.split("_", 2)[2].encode() not in written  # a secret may hold an underscore


def found_words(folder: Path) -> list[tuple[Path, str]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) > 10_000
    return [(path, word) for path in files for word in WORDS if word.encode() in path.read_bytes().lower()]
