"""Commands by themselves: options, output and pipes."""

import json
import os
import random
import re
import select
import signal
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson
import pytest

from recallflow.cli import main
from recallflow.connectors.embedders import load_embedder
from recallflow.samples import SampleQuestion, sample_questions
from recallflow.schema import schemas
from recallflow.state import keys
from recallflow.state.description import describe
from recallflow.state.files import read_checked, write_checked
from tests.llm_server import LlmServer
from tests.unit.cli.harness import Cli, Start, assert_error, closed_reader, event, jsonl, on_files, parsed, streams

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(cli: Cli, tmp_path: Path) -> Run:
    """Return a function that runs a command on a state directory, which is created by the first one."""
    return lambda *words, **options: cli(*words, "--state-dir", tmp_path / "s", **options)


@pytest.fixture(scope="module")
def demo_answers() -> list[dict[str, Any]]:
    done = on_files("demo", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    return parsed(done.stdout)


def test_demo_shows_every_question_in_80_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = cli("demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    shown = " ".join(done.stdout.split())
    answered = [question for question in sample_questions() if question.expect]
    assert all(question.query["query"] in shown and question.note in shown for question in sample_questions())
    assert (len(sample_questions()), shown.count("▸"), shown.count("because: ")) == (10, len(answered), len(answered))
    assert shown.count("no answer: ") == 10 - len(answered)


@pytest.mark.parametrize("question", sample_questions(), ids=lambda question: question.query["id"])
def test_demo_question_finds_its_memory_among_three(
    demo_answers: list[dict[str, Any]], question: SampleQuestion
) -> None:
    (answer,) = (one for one in demo_answers if one["query_id"] == question.query["id"])
    found = [memory["id"] for memory in answer["memories"]]
    assert (answer["status"], len(found)) == ("ok", 3)
    knows = "nothing_relevant" not in {warning["code"] for warning in answer.get("warnings", ())}
    assert (bool(set(found) & set(question.expect)), knows) == ((True, True) if question.expect else (False, False))


def test_demo_answers_typed_questions(cli: Cli) -> None:
    done = cli("demo", "--interactive", stdin=b"Who found my jacket?\ntheo: Which colour is the cat?\n\nnot asked\n")
    assert ((done.returncode, done.stderr), done.stdout.count("▸")) == ((0, ""), 2)
    assert "One green rain jacket" in done.stdout
    assert "Grey, thin, one torn ear." in done.stdout


def test_remembered_text_is_found_by_a_question(run: Run) -> None:
    told = run("remember", "The spare key is under the fern", "--kind", "rule")
    assert (told.returncode, told.stdout, told.stderr) == (0, "created: local:0:0\n", "")
    run("remember", "The kettle is broken")
    done = run("ask", "Where is the spare key?", "-k", 1)
    assert (done.returncode, done.stderr) == (0, "")
    first, reason = done.stdout.splitlines()
    assert re.fullmatch(r"  1\. (today|yesterday) \d\d:\d\d rule: The spare key is under the fern", first)
    assert reason.strip().startswith("because: ")


def test_json_is_the_receipt_and_the_response(run: Run) -> None:
    receipt = json.loads(run("remember", "tea", "--id", "a", "--json").stdout)
    assert (receipt["id"], receipt["outcome"]) == ("a", "created")
    response = json.loads(run("ask", "tea?", "--json", "--mode", "recency").stdout)
    assert (response["status"], [memory["id"] for memory in response["memories"]]) == ("ok", ["a"])


def test_each_owner_has_its_own_memory(run: Run) -> None:
    run("remember", "tea", "--user", "ann", "--tenant", "acme")
    for owner, named in {
        ("--user", "bob", "--tenant", "acme"): "user bob of tenant acme;",
        ("--user", "ann"): "user ann of tenant default;",
        ("--user", "ann", "--tenant", "acme", "--environment", "staging"): "user ann of tenant acme in staging;",
    }.items():
        said = run("ask", "tea?", *owner).stdout
        assert (named in said, said.count("\n")) == (True, 1)
    assert "tea" in run("ask", "tea?", "--user", "ann", "--tenant", "acme").stdout


def test_warnings_are_shown_before_an_empty_answer(run: Run) -> None:
    run("remember", "tea", "--user", "ann")
    warning, answer = run("ask", "tea?", "--k", 99).stdout.splitlines()
    assert (warning.split(":")[0], "user user of tenant default" in answer) == ("k_clamped", True)


SUMMARIES = {"diet": "Ana eats no meat.", "work": "Ana works at a bakery."}
Ask = Callable[..., str]


@pytest.fixture
def ask_model(run: Run, llm_server: LlmServer) -> Ask:
    """Return a function that asks with a language model, and returns the output."""
    owner = {"tenant_id": "default", "user_id": "user"}
    told = [event("category.summary", 1, category=one, summary=text) for one, text in SUMMARIES.items()]
    told += [event("memory", 1, content="Ana works at the bakery Tulipa")]
    told += [event("memory", 1, content="The kettle in the kitchen was repaired by Rui")]
    run("pipe", stdin=jsonl(*(one | owner for one in told)))
    llm_server.answer("select_categories", {"categories": ["work"]})
    llm_server.answer("rewrite", {"questions": ["Who repaired the kettle?"]})

    def ask(*flags: str) -> str:
        done = run("ask", "Where does Ana work?", "-k", 2, *flags, "--llm", "m-1", "--llm-url", llm_server.url)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return ask


def test_sufficient_summaries_are_the_answer(ask_model: Ask, llm_server: LlmServer) -> None:
    llm_server.answer("check_sufficiency", {"sufficient": True})
    assert ask_model("--check-sufficiency").splitlines() == [f"  {name}: {text}" for name, text in SUMMARIES.items()]
    assert ask_model("--check-sufficiency", "--select-categories") == f"  work: {SUMMARIES['work']}\n"


def test_memory_names_the_subquery_that_found_it(ask_model: Ask) -> None:
    assert "subquery: Who repaired the kettle?" in " ".join(ask_model("--rewrite").split())


@pytest.mark.usefixtures("default_partitions")
def test_info_shows_settings_counts_and_offsets(run: Run) -> None:
    lines = [
        event("message", content="a"), event("message", content="b", user_id="bob"),
        event("memory", id="c", content="c"), event("memory.forget", memory_id="c"),
    ]  # fmt: skip
    run("pipe", stdin=jsonl(*lines))
    told = json.loads(run("state", "info", "--json").stdout)
    name = load_embedder("meaning").name
    wanted = {"partitions": 16, "embedder": name, "dimension": 384, "episode_gap_minutes": 30.0}
    wanted |= {"owners": 2, "memories": 2, "applied": {"stdin:0": 3}}
    assert {name: told[name] for name in wanted} == wanted
    assert told["bytes"] > 0
    shown = [" ".join(line.split()) for line in run("state", "info").stdout.splitlines()]
    assert {*shown} >= {"memories 2", "owners 2", f"embedder {name}"}
    assert shown[-2:] == ["applied, up to offset", "stdin:0 3"]


def test_schema_prints_all_schemas_or_one(cli: Cli) -> None:
    assert json.loads(cli("schema").stdout) == json.loads(json.dumps(schemas()))
    assert json.loads(cli("schema", "response").stdout)["$id"] == "urn:recallflow:schema:response"


FORMAT = f'"format_version": {keys.FORMAT_VERSION}'
COMMANDS = [
    ("pipe",), ("ask", "tea?"), ("remember", "tea"), ("replay", "LOG", "--embedded"), ("state", "info"),
    ("state", "hash"),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_directory_of_another_format_is_refused(
    cli: Cli, filled: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "log").write_bytes(jsonl(event("message", content="tea")))
    description = filled / "recallflow.json"
    description.write_text(description.read_text().replace(FORMAT, '"format_version": 3'))
    words = [str(tmp_path / "log") if word == "LOG" else word for word in command]
    assert_error(cli(*words, "--state-dir", filled), 1, "format 3")


@pytest.mark.parametrize(
    ("changed", "tokens"),
    [
        ({"embedder": "all-MiniLM-L6-v2"}, ("embedder", "'all-MiniLM-L6-v2'", "'meaning-384-")),
        ({"episode_gap_ms": 300_000}, ("episode_gap_ms", "300000", "1800000")),
    ],
)
def test_directory_of_other_settings_is_refused(
    cli: Cli, filled: Path, changed: dict[str, Any], tokens: tuple[str, ...]
) -> None:
    told = read_checked(filled / "recallflow.json")
    write_checked(filled / "recallflow.json", told | {"settings": told["settings"] | changed})
    done = cli("ask", "tea?", "--state-dir", filled)
    for token in tokens:
        assert_error(done, 1, token)


@pytest.mark.parametrize("options", [[], ["--partitions", "8"]])
def test_directory_keeps_its_number_of_partitions(cli: Cli, filled: Path, options: list[str]) -> None:
    assert cli("remember", "tea", "--state-dir", filled, *options).returncode == 0
    assert describe(filled).fingerprint.partitions == 2
    assert json.loads(cli("state", "info", "--json", "--state-dir", filled).stdout)["partitions"] == 2


@pytest.mark.parametrize("below", ["", "below", "further/below"])
def test_path_of_a_file_is_refused(cli: Cli, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    assert_error(cli("remember", "tea", "--state-dir", tmp_path / "file" / below), 1, str(tmp_path / "file"))


@pytest.mark.parametrize("content", ["", "{}", "[]", f"{{{FORMAT}}}", f'{{{FORMAT}, "settings": {{"a": 1}}}}'])
def test_damaged_description_is_refused(cli: Cli, filled: Path, content: str) -> None:
    (filled / "recallflow.json").write_text(content)
    assert_error(cli("pipe", "--state-dir", filled), 1, "recallflow.json")


def test_exchanged_partition_folders_are_refused(cli: Cli, filled: Path) -> None:
    (filled / "p000").rename(filled / "aside")
    (filled / "p001").rename(filled / "p000")
    (filled / "aside").rename(filled / "p001")
    assert_error(cli("pipe", "--state-dir", filled), 1, "holds state partition 1, not 0")


@pytest.mark.parametrize(
    ("words", "token"),
    [
        (("ask", "tea?"), "--bootstrap-servers"), (("remember", "tea"), "--bootstrap-servers"),
        (("replay", "LOG", "--embedded"), "--state-dir"), (("replay", "LOG", "--state-dir", "NEW"), "--embedded"),
        (("replay", "NEW", "--embedded", "--state-dir", "NEW"), "no such file"),
        (("replay", "NEW", "--dry-run"), "no such file"), (("replay", "FOLDER", "--dry-run"), "without files"),
        (("replay", "EMPTY", "--dry-run"), "empty"), (("replay", "BINARY", "--dry-run"), "not a conversation log"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)  # fmt: skip
def test_incomplete_call_is_refused(cli: Cli, tmp_path: Path, words: tuple[str, ...], token: str) -> None:
    (tmp_path / "log").write_bytes(jsonl(event("message", content="tea")))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "folder").mkdir()
    names = ("LOG", "EMPTY", "BINARY", "FOLDER", "NEW")
    assert_error(cli(*(tmp_path / word.lower() if word in names else word for word in words)), 2, token)
    assert not (tmp_path / "new").exists()


GIVE_UP_S = 60
NOT_JSON = b'{"type": "message", "tenant_id"'
HELLO = event("message", content="hello")
Pipe = Callable[..., tuple[list[Any], list[tuple[int, str]]]]


@pytest.fixture
def pipe(cli: Cli) -> Pipe:
    """Return a function that pipes events and returns the answers, and the lines and codes of the refused ones."""

    def run(*events: dict[str, Any] | bytes, state_dir: Path | None = None) -> tuple[list[Any], list[tuple[int, str]]]:
        options = () if state_dir is None else ("--state-dir", state_dir)
        done = cli("pipe", *options, stdin=jsonl(*events))
        assert done.returncode == 0
        return parsed(done.stdout), [(one["line"], one["error"]["code"]) for one in parsed(done.stderr)]

    return run


def write(stream: IO[bytes] | None, *events: dict[str, Any] | bytes) -> None:
    assert stream is not None
    stream.write(jsonl(*events))
    stream.flush()


def read(stream: IO[bytes] | None) -> Any:
    assert stream is not None
    return orjson.loads(stream.readline())


@pytest.fixture
def partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALLFLOW_ENGINE_PARTITIONS", "4")


@pytest.mark.usefixtures("partitioned")
def test_answer_sees_exactly_the_writes_before_it(pipe: Pipe) -> None:
    """Use several partitions, which run at their own pace, and more lines than a batch has."""
    draw = random.Random(11)
    written: dict[str, list[str]] = defaultdict(list)
    lines, expected = [], []
    for number in range(300):
        user = draw.choice(["ann", "bob", "cy", "dee", "eve"])
        if draw.random() < 0.5:
            written[user].append(f"m{number}")
            lines.append(event("message", number, id=f"m{number}", user_id=user, content=f"word {number}"))
        else:
            lines.append(event("recall", 1_000, user_id=user, query="word", mode="recency", k=50, explain=False))
            expected.append(written[user][-50:][::-1])  # the newest 50, newest first
    answers, refused = pipe(*lines)
    assert ([[memory["id"] for memory in answer["memories"]] for answer in answers], refused) == (expected, [])


@pytest.mark.usefixtures("partitioned")
def test_each_query_line_gives_one_response_line_in_order(pipe: Pipe) -> None:
    draw = random.Random(5)
    lines, asked = [], []
    for number in range(120):
        user, query_id = draw.choice(["ann", "bob", "cy"]), f"q{number}"
        line = draw.choice(
            [
                event("message", user_id=user, content="hello"),
                event("message", user_id=user, role="nobody", content="refused"),
                event("recall", user_id=user, id=query_id, query="hello"),
                event("recall", user_id=user, id=query_id, query=""),  # malformed
                event("recall", user_id=user, id=query_id, query="hello", as_of={"event_time": -1e30}),
                event("memory.get", user_id=user, id=query_id, memory_id="nothing"),
                event("episodes.list", user_id=user, id=query_id),
            ]
        )
        lines.append(line)
        if "id" in line:
            answerable = line["type"] == "episodes.list" or (bool(line.get("query")) and "as_of" not in line)
            asked.append((query_id, "ok" if answerable else "error"))
    assert len(set(asked)) > 50
    answers, _ = pipe(*lines)
    assert [(answer["query_id"], answer["status"]) for answer in answers] == asked


def test_malformed_query_is_answered_and_refused(cli: Cli) -> None:
    done = cli("pipe", stdin=jsonl(HELLO, event("recall", id="q1", query="", k="many"), event("recall", query="")))
    (answer, unnamed), (refused, _) = parsed(done.stdout), parsed(done.stderr)
    assert (answer["query_id"], answer["status"], unnamed["query_id"]) == ("q1", "error", "stdin:0:2")
    assert {problem["field"] for problem in answer["error"]["fields"]} == {"query", "k"}
    assert refused == {"line": 2, "error": answer["error"]}


def test_query_with_an_escaped_type_or_a_mark_is_answered(pipe: Pipe) -> None:
    escaped = orjson.dumps(event("user.stats", id="q")).replace(b"user.stats", rb"user\u002estats")
    marked = b"\xef\xbb\xbf" + orjson.dumps(event("user.stats", id="q"))
    answers, _ = pipe(HELLO, escaped, HELLO, marked, HELLO)
    assert [answer["stats"]["memories"] for answer in answers] == [1, 2]


def test_date_of_another_tenant_moves_no_clock(pipe: Pipe) -> None:
    far = event("message", tenant_id="other", content="far") | {"timestamp": "9999-12-31T00:00:00Z"}
    near = event("message", id="m", content="A walnut.") | {"timestamp": "2026-05-20T09:00:00Z"}
    asked = event("recall", query="walnut", as_of={"ingestion_time": "2027-01-01T00:00:00Z"})
    (answer,), _ = pipe(far, near, asked | {"timestamp": "2027-01-01T00:00:00Z"})
    assert [memory["id"] for memory in answer["memories"]] == ["m"]


def test_writes_print_nothing(pipe: Pipe) -> None:
    assert pipe(HELLO | {"receipt": True}) == ([], [])


def test_lines_that_the_state_refuses_are_printed_in_line_order(pipe: Pipe) -> None:
    _, refused = pipe(
        event("memory", id="a", content="tea"), event("memory", id="a", content="coffee"), NOT_JSON,
        event("memory.update", memory_id="b", summary="no such memory"),
        event("memory.feedback", memory_id="b", useful=True), {"type": "message"},
    )  # fmt: skip
    codes = ["id_conflict", "invalid_json", "not_found", "not_found", "invalid_event"]
    assert refused == [*enumerate(codes, 2)]


def converse(*turns: list[dict[str, Any]]) -> Iterator[Any]:
    """Write each turn to a pipe only after the answer to the turn before, and yield the answers."""
    (stdin, ours), (theirs, stdout) = os.pipe(), os.pipe()
    answers: list[bytes] = []

    def talk() -> None:
        with os.fdopen(ours, "wb", buffering=0) as writer, os.fdopen(theirs, "rb", buffering=0) as reader:
            for turn in turns:
                writer.write(jsonl(*turn))
                if not select.select([reader], [], [], GIVE_UP_S)[0]:
                    break
                answers.append(reader.readline())

    talker = threading.Thread(target=talk)
    talker.start()
    with Path(os.devnull).open("wb") as nowhere, streams(stdin, stdout, nowhere.fileno()):
        code = main(["pipe"])
    for opened in (stdin, stdout):
        os.close(opened)
    talker.join()
    assert (code, len(answers)) == (0, len(turns))
    return map(orjson.loads, answers)


def test_answer_is_printed_before_the_next_line_is_written() -> None:
    turns = [[event("message", n, id=f"m{n}", content="hi"), event("user.stats", id=f"q{n}")] for n in range(20)]
    found = [(answer["query_id"], answer["stats"]["memories"]) for answer in converse(*turns)]
    assert found == [(f"q{number}", number + 1) for number in range(20)]


def test_query_waiting_for_a_later_line_is_answered_without_it() -> None:
    """The line cannot come first: a program may write it only after the answer."""
    positions = ["stdin:0:0", "stdin:0:99", ["elsewhere:3:0", "stdin:0:0"], "stdin:0:4"]
    questions = [[event("recall", id=f"q{n}", query="bicycle", wait_for=at)] for n, at in enumerate(positions)]
    answers = [*converse([event("message", content="a bicycle"), *questions[0]], *questions[1:])]
    assert [(one["query_id"], one["status"]) for one in answers] == [
        ("q0", "ok"), ("q1", "degraded"), ("q2", "degraded"), ("q3", "degraded"),
    ]  # fmt: skip
    codes = [[warning["code"] for warning in one.get("warnings", ())] for one in answers]
    assert codes == [[], ["stale_read"], ["stale_read"], ["stale_read"]]


@pytest.mark.processes
def test_interrupt_ends_a_waiting_pipe_quietly(start: Start) -> None:
    process = start("pipe")
    write(process.stdin, event("recall", query="hello"))
    read(process.stdout)  # it is up, and waits for the next line
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stderr is not None
    assert (process.wait(), process.stdout.read(), process.stderr.read()) == (130, b"", b"")


def test_closed_output_ends_the_pipe_quietly() -> None:
    with closed_reader() as unread:
        done = on_files("pipe", stdin=jsonl(*[event("recall", query="hello")] * 50), stdout=unread)
    assert (done.returncode, done.stderr) == (141, b"")


def test_second_run_continues_the_positions(cli: Cli, pipe: Pipe, tmp_path: Path) -> None:
    def applied() -> Any:
        return json.loads(cli("state", "info", "--json", "--state-dir", tmp_path / "s").stdout)["applied"]

    pipe(HELLO, HELLO, HELLO, state_dir=tmp_path / "s")
    assert applied() == {"stdin:0": 2}
    _, refused = pipe(HELLO, NOT_JSON, HELLO, state_dir=tmp_path / "s")
    assert applied() == {"stdin:0": 5}
    assert refused == [(2, "invalid_json")]  # lines are numbered per run


def test_later_runs_give_new_default_ids(pipe: Pipe, tmp_path: Path) -> None:
    """End each run with another kind of line: a write, a query, or a refused line."""
    given: list[str] = []
    query = event("recall", query="hello", k=50)
    for last in (HELLO, query, NOT_JSON, HELLO):
        answers, _ = pipe(HELLO, query, last, state_dir=tmp_path / "s")
        given += [answer["query_id"] for answer in answers]
    (answer,), _ = pipe(query, state_dir=tmp_path / "s")
    given += [answer["query_id"], *(memory["id"] for memory in answer["memories"])]
    assert len(answer["memories"]) == 6
    assert len(set(given)) == len(given)


def test_without_a_state_directory_no_file_remains(pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pipe(HELLO)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["no line end", "ends of Windows"])
def test_line_ends_of_every_kind_are_read(cli: Cli, end: bytes) -> None:
    lines = jsonl(event("message", id="a", content="hello"), event("memory.get", memory_id="a")).splitlines()
    (answer,) = parsed(cli("pipe", stdin=(end or b"\n").join(lines) + end).stdout)
    assert answer["status"] == "ok"
