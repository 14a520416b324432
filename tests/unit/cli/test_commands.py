"""`demo`, `remember`, `ask`, `schema` and `state`, and how commands refuse state directories and models."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recallflow.connectors.embedders import load_embedder
from recallflow.samples import SampleQuestion, sample_questions
from recallflow.schema import schemas
from recallflow.state import keys
from recallflow.state.description import describe
from recallflow.state.files import read_checked, write_checked
from tests.llm_server import LlmServer
from tests.unit.cli.harness import Cli, assert_error, event, jsonl, on_files, parsed

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
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("▸") == 2
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
        (("ask", "tea?"), "--bootstrap-servers"),
        (("remember", "tea"), "--bootstrap-servers"),
        (("replay", "LOG", "--embedded"), "--state-dir"),
        (("replay", "LOG", "--state-dir", "NEW"), "--embedded"),
        (("replay", "NEW", "--embedded", "--state-dir", "NEW"), "no such file"),
        (("replay", "NEW", "--dry-run"), "no such file"),
        (("replay", "FOLDER", "--dry-run"), "without files"),
        (("replay", "EMPTY", "--dry-run"), "empty"),
        (("replay", "BINARY", "--dry-run"), "not a conversation log"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_incomplete_call_is_refused(cli: Cli, tmp_path: Path, words: tuple[str, ...], token: str) -> None:
    (tmp_path / "log").write_bytes(jsonl(event("message", content="tea")))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "folder").mkdir()
    names = ("LOG", "EMPTY", "BINARY", "FOLDER", "NEW")
    assert_error(cli(*(tmp_path / word.lower() if word in names else word for word in words)), 2, token)
    assert not (tmp_path / "new").exists()
