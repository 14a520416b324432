"""`recallflow demo`: bundled conversations in the real engine, and ten questions about them."""

import argparse
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from recallflow.cli.flags import add_kafka, config
from recallflow.cli.kafka import create_missing_topics
from recallflow.cli.memories import DIM, NO_MATCH, WHEN, WHO, one_line, passage, print_block, relative_time, speaker
from recallflow.cli.output import console, heading, json_line, paragraph
from recallflow.cli.parser import Commands, add_command
from recallflow.errors import QueryTimeout, SourceError
from recallflow.samples import SampleQuestion

if TYPE_CHECKING:  # the engine imports slowly, and help does not need it
    import subprocess

    from recallflow.client import RecallClient
    from recallflow.kafka_options import KafkaOptions
    from recallflow.memory import Memory

QUESTION, NO_ANSWER = "bold", "bold yellow"  # styles
NAMES = {"maya": "Maya", "team-atlas": "Team Atlas", "theo": "Theo"}
_INDENT = "    "
TENANT = "demo"
START_S, PROBE_S, END_S = 60.0, 1.0, 20.0


def print_question(target: Console, number: int, question: SampleQuestion, answer: Mapping[str, Any]) -> None:
    """Print a sample question and its answer; the expected memory is highlighted."""
    query = question.query
    target.print()
    print_block(target, Text(question.note, DIM), f"{number:>2}. ")
    print_block(target, Text.assemble((f"{NAMES[query['user_id']]}: ", WHO), (query["query"], QUESTION)), _INDENT)
    print_answer(target, answer, query["user_id"], datetime.fromisoformat(query["timestamp"]), question.expect)


def print_answer(target: Console, answer: Mapping[str, Any], user: str, now: datetime, expect: Sequence[str]) -> None:
    """Print the memories of an answer; the first expected one is highlighted, or else the first."""
    if NO_MATCH in {warning["code"] for warning in answer.get("warnings", ())}:
        chance = f"a chance of {answer['answerable']:.0%} that a memory contains the answer"
        print_block(target, Text.assemble(("no answer", NO_ANSWER), f": {chance}"), f"{_INDENT}\N{EM DASH} ")
        return
    memories = answer["memories"]
    expected_id = next((memory["id"] for memory in memories if memory["id"] in expect), None)
    for memory in memories:
        _print_memory(target, memory, user, now, answers=memory["id"] == (expected_id or memories[0]["id"]))


def _print_memory(target: Console, memory: Mapping[str, Any], user: str, now: datetime, *, answers: bool) -> None:
    author = NAMES[user] if memory["role"] == "user" and memory["name"] is None else speaker(memory)
    text = Text.assemble((f"{relative_time(memory['created_at'], now)} ", WHEN), (f"{author}: ", WHO), passage(memory))
    if not answers:
        text.stylize(DIM)
        print_block(target, text, f"{_INDENT}  ")
        return
    print_block(target, text, f"{_INDENT}\N{BLACK RIGHT-POINTING SMALL TRIANGLE} ", f"{_INDENT}  ")
    reason = next((one for one in memory["why"] if one["code"] == "answers"), memory["why"][0])  # most informative
    print_block(target, Text(f"because: {one_line(reason['text'])}", DIM), f"{_INDENT}  ")


def add_demo(commands: Commands) -> None:
    parser = add_command(commands, "demo", run_demo)
    parser.add_argument("--interactive", action="store_true", help="ask your own questions, one per line")
    parser.add_argument("--kafka", action="store_true", help="on a broker, with temporary topics and an engine process")
    parser.add_argument("--json", action="store_true", help="print the responses as JSON lines")
    add_kafka(parser)


def run_demo(options: argparse.Namespace) -> None:
    """Ten questions about bundled conversations, answered with reasons.
    The conversations are of a person with her assistant, a team, and two friends. Needs no Kafka and no network, and
    leaves no files.
    $ recallflow demo
    $ recallflow demo --json | head -1"""
    from recallflow.samples import sample_events, sample_questions

    began_s = time.perf_counter()  # the slow import counts
    from recallflow.memory import Memory

    with _engine_behind(config(options).kafka) if options.kafka else Memory(tenant=TENANT) as engine:
        events = sample_events()
        for event in events:
            engine.send(event)
        if options.interactive:
            _converse(engine)
            return
        questions = sample_questions()
        answers = [_ask_engine(engine, question.query) for question in questions]
    if options.json:
        for answer in answers:
            json_line(answer)
        return
    chats, seconds = len({event.user_id for event in events}), time.perf_counter() - began_s
    stored = f"{len(events)} events of {chats} chats"
    print(paragraph(f"{stored} remembered, {len(questions)} questions answered, in {seconds:.1f} s with start-up."))
    target = console()
    for number, (question, answer) in enumerate(zip(questions, answers, strict=True), 1):
        print_question(target, number, question, answer)
    print()
    heading("Your own memory")
    print('  recallflow remember "I moved to Porto" --state-dir memory --create')
    print('  recallflow ask "Where do I live?" --state-dir memory')


def _ask_engine(engine: "Memory | RecallClient", query: dict[str, Any]) -> dict[str, Any]:
    from recallflow.queries import Recall

    return engine.ask(Recall.model_validate(query | {"explain": True})).model_dump(mode="json", exclude_unset=True)


def _converse(engine: "Memory | RecallClient") -> None:
    """Answer input lines until an empty one. `maya: …` asks Maya's memory, and so do later lines without a name."""
    from recallflow.samples import sample_questions

    target, user = console(), next(iter(NAMES))
    time_text: str = sample_questions()[0].query["timestamp"]
    if is_interactive := sys.stdin.isatty():
        print(paragraph(f"Ask about {', '.join(NAMES)}: “theo: What is the cat called?”. An empty line ends it."))
    while line := _read_line(f"{user}> " if is_interactive else ""):
        name, colon, question = line.partition(":")
        if colon and name.strip().lower() in NAMES:
            user, line = name.strip().lower(), question.strip()
        if line:
            fields = {"tenant_id": TENANT, "user_id": user, "query": line, "k": 3, "timestamp": time_text}
            answer = _ask_engine(engine, {"type": "recall"} | fields)
            print_answer(target, answer, user, datetime.fromisoformat(time_text), ())


def _read_line(prompt: str) -> str:
    try:
        return input(prompt).strip()
    except EOFError:
        return ""


@contextmanager
def _engine_behind(kafka: "KafkaOptions") -> "Iterator[RecallClient]":
    """Yield a client of an engine process on temporary topics. Raise SourceError where the broker cannot be used."""
    from recallflow.client import RecallClient
    from recallflow.connectors.kafka.admin import delete_topics
    from recallflow.flows.config import Config, as_file
    from recallflow.flows.settings import TopicNames

    name = f"recallflow-demo-{uuid.uuid4().hex[:8]}"
    defaults = {field: topic for field, topic in asdict(TopicNames()).items() if isinstance(topic, str)}
    topics: dict[str, Any] = {field: f"{name}.{topic}" for field, topic in defaults.items()}
    chosen = Config(kafka=kafka, topics=replace(TopicNames(), **topics))
    with TemporaryDirectory(prefix=f"{name}-") as folder:
        settings, log = Path(folder, "config.toml"), Path(folder, "log")
        settings.write_text(as_file(chosen))  # in a file, because a command line would show passwords
        settings.chmod(0o600)
        try:
            create_missing_topics(chosen, 1, 1)
            client = RecallClient(
                kafka.bootstrap_servers, TENANT, memory_topic=topics["memory"], query_topic=topics["queries"],
                response_topic=topics["responses"], options=kafka.librdkafka, timeout_s=START_S,
                msk_iam_region=kafka.msk_iam_region,
            )  # fmt: skip
            with _running(settings, Path(folder, "state"), log) as engine, client:
                _wait_until_up(engine, client, log)
                yield client
        finally:
            delete_topics(kafka, [*topics.values()])


def _wait_until_up(engine: "subprocess.Popen[bytes]", client: "RecallClient", log: Path) -> None:
    """Wait until the engine answers. It never answers queries that were sent before its first start."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and engine.poll() is None:
        with suppress(QueryTimeout):
            client.stats(user="maya", timeout_s=PROBE_S)
            return
    lines = log.read_text(errors="replace").strip().splitlines()
    raise SourceError(f"the demo's engine did not start: {lines[-1] if lines else 'its log is empty'}")


@contextmanager
def _running(settings: Path, state_dir: Path, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Run an engine process within the block, without the settings in this process's environment."""
    import subprocess

    from recallflow.flows.config import PREFIX

    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    arguments = ("run", "--config", str(settings), "--state-dir", str(state_dir), "--create")
    command = [sys.executable, "-m", "recallflow", *arguments]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)  # noqa: S603
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        process.wait()
