"""The commands, and what they say to a user's mistakes: one line, what is wrong and what to do."""

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.connectors.embedders import load_embedder
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.samples import SampleQuestion, sample_path, sample_questions
from recallflow.schema import schemas
from recallflow.state import keys
from recallflow.state.directory import StateDirectory, describe
from recallflow.state.files import read_checked, write_checked
from tests.llm_server import LlmServer

Cli = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[bytes]]
MakeEvent = Callable[..., dict[str, Any]]
Jsonl = Callable[..., bytes]
Parsed = Callable[[str | bytes], list[Any]]

OPENAI = [
    {
        "id": "chat-7",
        "created": 1_700_000_000,
        "messages": [
            {"role": "user", "content": "Which moss grows on the north wall?", "id": "moss"},
            {"role": "assistant", "content": "Silvergreen bryum, most likely."},
        ],
    },
    {"id": "chat-8", "messages": [{"role": "user", "content": "Remind me of the ferry at noon."}]},
]
LOCOMO = [
    {
        "sample_id": "pair-1",
        "conversation": {
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ann", "dia_id": "D1:1", "text": "I planted a quince."},
                {"speaker": "Bo", "dia_id": "D1:2", "text": "Mine died in the frost."},
            ],
        },
    }
]


def info(cli: Cli, state_dir: Path) -> Any:
    return json.loads(cli("state", "info", "--json", "--state-dir", state_dir).stdout)


def memory_of(cli: Cli, state_dir: Path, memory_id: str, **owner: str) -> Any:
    """The current version of a memory, or None."""
    query = {"type": "memory.get", "tenant_id": "acme", "user_id": "ann", "memory_id": memory_id} | owner
    answer = json.loads(cli("pipe", "--state-dir", state_dir, stdin=orjson.dumps(query)).stdout)
    return answer["versions"][0] if answer["status"] == "ok" else None


def replayed(done: subprocess.CompletedProcess[str], code: int = 0) -> list[str]:
    """What a replay says of each log, without how fast it was. `code`: 1 where something was refused."""
    assert done.returncode == code, done.stderr
    lines = [re.fullmatch(r"(.+); [\d,]+ events/s", line) for line in done.stdout.splitlines()]
    return [line[1] for line in lines if line]


def dry_run(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The table of counts that a dry run shows of a log."""
    _, names, counts, *_ = done.stdout.splitlines()
    return dict(zip(re.split(r" {2,}", names.strip()), counts.split(), strict=True))


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, says: str) -> None:
    """The command failed with one line that tells what is wrong."""
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(r"recallflow: [^\n]+\n", done.stderr), done.stderr
    assert says in done.stderr


# ── demo ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def demo_answers(start: Callable[..., subprocess.Popen[bytes]]) -> dict[str, Any]:
    """The demo's responses, by query id, as a user gets them from a process of its own."""
    demo = start("demo", "--json")
    out, err = demo.communicate()
    assert (demo.returncode, err) == (0, b"")
    return {answer["query_id"]: answer for answer in map(orjson.loads, out.splitlines())}


def test_the_demo_answers_every_question_within_80_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_demo_finds_what_a_question_is_about_among_the_first_three(
    demo_answers: dict[str, Any], question: SampleQuestion
) -> None:
    answer = demo_answers[question.query["id"]]
    found = [memory["id"] for memory in answer["memories"]]
    assert (answer["status"], len(found)) == ("ok", 3)
    knows = "nothing_relevant" not in {warning["code"] for warning in answer.get("warnings", ())}
    assert (bool(set(found) & set(question.expect)), knows) == ((True, True) if question.expect else (False, False))


def test_one_asks_the_demo_questions_of_ones_own(cli: Cli) -> None:
    done = cli("demo", "--interactive", stdin=b"Who found my jacket?\ntheo: Which colour is the cat?\n\nnot asked\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("▸") == 2
    assert "One green rain jacket" in done.stdout
    assert "Grey, thin, one torn ear." in done.stdout


def test_the_demo_gives_the_same_answers_each_time(cli: Cli, demo_answers: dict[str, Any], parsed: Parsed) -> None:
    def lasting(answer: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in answer.items() if k not in ("processing_time_ms", "sla_met", "routing_info")}

    again = [lasting(answer) for answer in parsed(cli("demo", "--json").stdout)]
    assert again == [lasting(answer) for answer in demo_answers.values()]


# ── remember, ask ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_remembered_is_found_by_asking(cli: Cli, tmp_path: Path) -> None:
    told = cli("remember", "The spare key is under the fern", "--kind", "rule", "--state-dir", tmp_path / "s")
    assert (told.returncode, told.stdout, told.stderr) == (0, "created: local:0:0\n", "")
    cli("remember", "The kettle is broken", "--state-dir", tmp_path / "s")
    done = cli("ask", "Where is the spare key?", "-k", 1, "--state-dir", tmp_path / "s")
    assert (done.returncode, done.stderr) == (0, "")
    first, reason = done.stdout.splitlines()
    assert re.fullmatch(r"  1\. (today|yesterday) \d\d:\d\d rule: The spare key is under the fern", first)
    assert reason.strip().startswith("because: ")


def test_asking_for_what_nobody_told_shows_nothing_unless_it_is_to(cli: Cli, tmp_path: Path) -> None:
    cli("remember", "I moved to Porto in spring and rent a flat by the river", "--state-dir", tmp_path / "s")
    asked = ("ask", "What is the boiling point of mercury in a vacuum chamber?", "--state-dir", tmp_path / "s")
    done = cli(*asked)
    assert (done.returncode, done.stdout) == (0, "nothing about that (--min-relevance 0 shows the nearest memories)\n")
    assert "Porto" in cli(*asked, "--min-relevance", 0).stdout
    assert "nothing about that" in cli("ask", "Which flat in Porto?", "--min-relevance", 1, *asked[2:]).stdout
    assert "Porto" in cli("ask", "Which flat do I rent in Porto?", *asked[2:]).stdout


def test_asking_for_json_gives_the_whole_response(cli: Cli, tmp_path: Path) -> None:
    receipt = json.loads(cli("remember", "tea", "--id", "a", "--json", "--state-dir", tmp_path / "s").stdout)
    assert (receipt["id"], receipt["outcome"]) == ("a", "created")
    response = json.loads(cli("ask", "tea?", "--json", "--mode", "recency", "--state-dir", tmp_path / "s").stdout)
    assert (response["status"], [memory["id"] for memory in response["memories"]]) == ("ok", ["a"])


def test_each_owner_has_a_memory_of_its_own(cli: Cli, tmp_path: Path) -> None:
    cli("remember", "tea", "--user", "ann", "--tenant", "acme", "--state-dir", tmp_path / "s")
    for owner, named in {
        ("--user", "bob", "--tenant", "acme"): "user bob of tenant acme",
        ("--user", "ann"): "user ann of tenant default",
        ("--user", "ann", "--tenant", "acme", "--environment", "staging"): "user ann of tenant acme in staging",
    }.items():
        said = cli("ask", "tea?", *owner, "--state-dir", tmp_path / "s").stdout
        assert said == f"nothing remembered yet of {named}; --user and --tenant name another\n"
    assert "tea" in cli("ask", "tea?", "--user", "ann", "--tenant", "acme", "--state-dir", tmp_path / "s").stdout


def test_remembering_under_the_same_id_again_is_a_duplicate(cli: Cli, tmp_path: Path) -> None:
    """That is what an idempotency key is for: a script that is run twice."""
    cli("remember", "tea", "--id", "a", "--state-dir", tmp_path / "s")
    again = cli("remember", "tea", "--id", "a", "--state-dir", tmp_path / "s")
    assert (again.returncode, again.stdout, again.stderr) == (0, "duplicate: a\n", "")


def test_other_content_under_the_same_id_is_refused(cli: Cli, tmp_path: Path) -> None:
    cli("remember", "tea", "--id", "a", "--state-dir", tmp_path / "s")
    assert_one_line(cli("remember", "coffee", "--id", "a", "--state-dir", tmp_path / "s"), 1, "id: was used before")


def test_a_warning_does_not_hide_that_nothing_is_remembered(cli: Cli, tmp_path: Path) -> None:
    cli("remember", "tea", "--user", "ann", "--state-dir", tmp_path / "s")
    done = cli("ask", "tea?", "--k", 99, "--state-dir", tmp_path / "s")
    assert done.stdout.splitlines() == [
        "k_clamped: k was 99; 1 to 50 are answered",
        "nothing remembered yet of user user of tenant default; --user and --tenant name another",
    ]


SUMMARIES = {"diet": "Ana eats no meat.", "work": "Ana works at a bakery."}


@pytest.fixture
def ask_model(cli: Cli, llm_server: LlmServer, tmp_path: Path) -> Callable[..., str]:
    """What `ask` prints where a language model has a part in the answer."""
    owner = {"tenant_id": "default", "user_id": "user", "timestamp": 1}
    told = [{"type": "category.summary", "category": one, "summary": text} for one, text in SUMMARIES.items()]
    told += [{"type": "memory", "content": "Ana works at the bakery Tulipa"}]
    told += [{"type": "memory", "content": "The kettle in the kitchen was repaired by Rui"}]
    cli("pipe", "--state-dir", tmp_path / "s", stdin=b"\n".join(json.dumps(owner | one).encode() for one in told))
    llm_server.answer("select_categories", {"categories": ["work"]})
    llm_server.answer("rewrite", {"questions": ["Who repaired the kettle?"]})

    def ask(*flags: str) -> str:
        model = ("--llm", "m-1", "--llm-url", llm_server.url, "--state-dir", tmp_path / "s")
        done = cli("ask", "Where does Ana work?", "-k", 2, *flags, *model)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return ask


def test_summaries_that_are_enough_are_the_answer(ask_model: Callable[..., str], llm_server: LlmServer) -> None:
    llm_server.answer("check_sufficiency", {"sufficient": True})
    assert ask_model("--check-sufficiency").splitlines() == [f"  {name}: {text}" for name, text in SUMMARIES.items()]
    assert ask_model("--check-sufficiency", "--select-categories") == f"  work: {SUMMARIES['work']}\n"


def test_summaries_that_are_not_enough_leave_the_memories(ask_model: Callable[..., str], llm_server: LlmServer) -> None:
    llm_server.answer("check_sufficiency", {"sufficient": False})
    shown = ask_model("--check-sufficiency")
    assert "Tulipa" in shown
    assert SUMMARIES["work"] not in shown
    assert ask_model("--select-categories").startswith(f"  work: {SUMMARIES['work']}\n  1. ")


def test_a_memory_says_which_smaller_question_found_it(ask_model: Callable[..., str]) -> None:
    assert "asked beside: Who repaired the kettle?" in " ".join(ask_model("--rewrite").split())


def test_without_a_language_model_asking_for_one_says_so(cli: Cli, tmp_path: Path) -> None:
    cli("remember", "tea", "--state-dir", tmp_path / "s")
    said = cli("ask", "tea?", "--rewrite", "--state-dir", tmp_path / "s").stdout
    assert said.startswith("llm_off: ")
    assert "fact: tea" in said


def test_asking_makes_no_directory(cli: Cli, tmp_path: Path) -> None:
    assert_one_line(cli("ask", "tea?", "--state-dir", tmp_path / "mistyped"), 1, "there is no state directory")
    assert not (tmp_path / "mistyped").exists()


def test_an_empty_question_fails_and_says_why(cli: Cli, tmp_path: Path) -> None:
    cli("remember", "tea", "--state-dir", tmp_path / "s")
    assert_one_line(cli("ask", "", "--state-dir", tmp_path / "s"), 1, "query: is empty; give some text")


# ── replay ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_log_of_events_keeps_ids_owners_and_times(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(jsonl(make_event("message", 1_000, id="a", content="hello"), make_event("recall", query="hello")))
    done = cli("replay", log, "--embedded", "--state-dir", tmp_path / "s")
    assert replayed(done) == ["log.jsonl: 2 events"]
    assert memory_of(cli, tmp_path / "s", "a")["created_at"] == "1970-01-01T00:00:01Z"


def test_openai_chats_go_to_the_owner_that_is_given(cli: Cli, tmp_path: Path, jsonl: Jsonl) -> None:
    log = tmp_path / "chats.jsonl"
    log.write_bytes(jsonl(*OPENAI))
    owner = ["--tenant", "acme", "--user", "kim", "--environment", "staging"]
    done = cli("replay", log, "--embedded", "--state-dir", tmp_path / "s", *owner)
    assert replayed(done) == ["chats.jsonl: 3 events"]
    assert "Silvergreen bryum" in cli("ask", "What moss is on the wall?", *owner, "--state-dir", tmp_path / "s").stdout
    stored = memory_of(cli, tmp_path / "s", "moss", user_id="kim", environment="staging")
    assert (stored["session_id"], stored["created_at"]) == ("chat-7", "2023-11-14T22:13:20Z")


def test_two_chats_without_ids_are_both_remembered_and_once(cli: Cli, tmp_path: Path, jsonl: Jsonl) -> None:
    logs = [tmp_path / "one.jsonl", tmp_path / "two.json"]
    logs[0].write_bytes(jsonl({"role": "user", "content": "hi"}, {"role": "user", "content": "Plums are ripe."}))
    logs[1].write_bytes(b'[{"role":"user","content":"hi"},{"role":"user","content":"Pears are not."}]')
    done = cli("replay", *logs, "--embedded", "--state-dir", tmp_path / "s")
    assert replayed(done) == ["one.jsonl: 2 events", "two.json: 2 events"]
    with logs[0].open("ab") as grown:
        grown.write(jsonl({"role": "user", "content": "Quinces are."}))
    (tmp_path / "moved").mkdir()
    logs[0].rename(tmp_path / "moved" / "one.jsonl")  # it is read from its beginning
    cli("replay", tmp_path / "moved" / "one.jsonl", logs[1], "--embedded", "--state-dir", tmp_path / "s")
    assert info(cli, tmp_path / "s")["memories"] == 5


def test_locomo_samples_are_users_with_speakers(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "locomo.json"
    log.write_text(json.dumps(LOCOMO, indent=1))
    done = cli("replay", log, "--embedded", "--state-dir", tmp_path / "s", "--tenant", "acme")
    assert replayed(done) == ["locomo.json: 2 events"]
    stored = memory_of(cli, tmp_path / "s", "D1:2", user_id="pair-1")
    assert (stored["name"], stored["content"], stored["created_at"]) == (
        "Bo",
        "Mine died in the frost.",
        "2023-05-08T13:56:00Z",
    )


def test_a_dry_run_counts_and_stores_nothing(cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(jsonl(make_event("message", content="hello")))
    done = cli("replay", log, "--dry-run", "--embedded", "--state-dir", tmp_path / "s")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "log.jsonl: events"
    assert (dry_run(done)["events"], dry_run(done)["refused"]) == ("1", "0")
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_dry_run_tells_what_would_be_refused(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(jsonl(make_event("message", content="hello"), b"{", make_event("message")))
    done = cli("replay", log, "--dry-run")
    assert (done.returncode, dry_run(done)["events"], dry_run(done)["refused"]) == (1, "1", "2")
    assert [(told["line"], told["error"]["code"]) for told in parsed(done.stderr)] == [
        (2, "invalid_json"),
        (3, "invalid_event"),
    ]


def test_refused_records_end_up_in_the_rejects_file_with_their_reasons(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    log = tmp_path / "log.jsonl"
    unknown = make_event("memory.update", memory_id="nobody", summary="s")
    log.write_bytes(jsonl(make_event("message", id="a", content="hello"), b"{", unknown, b"\xff"))
    done = cli("replay", log, "--embedded", "--state-dir", tmp_path / "s")
    rejects = tmp_path / "log.jsonl.rejects.jsonl"
    assert replayed(done, 1) == [f"log.jsonl: 1 events; 3 refused, see {rejects}"]
    noted = parsed(rejects.read_bytes())
    assert [(reject["line"], reject["error"]["code"]) for reject in noted] == [
        (2, "invalid_json"),
        (3, "not_found"),
        (4, "invalid_json"),
    ]
    assert [reject["record"] for reject in noted] == ["{", orjson.dumps(unknown).decode(), "\ufffd"]
    assert memory_of(cli, tmp_path / "s", "a") is not None


def test_a_replay_again_adds_nothing(cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(jsonl(make_event("message", content="a"), b"{", make_event("message", content="b")))
    cli("replay", log, "--embedded", "--state-dir", tmp_path / "s")
    before = info(cli, tmp_path / "s"), (tmp_path / "log.jsonl.rejects.jsonl").read_bytes()
    done = cli("replay", log, "--embedded", "--state-dir", tmp_path / "s")
    assert (done.returncode, done.stdout) == (0, "log.jsonl: 0 events, 3 before were there from an earlier run\n")
    after = info(cli, tmp_path / "s"), (tmp_path / "log.jsonl.rejects.jsonl").read_bytes()
    assert (before[0]["memories"], before[0]["applied"], before[1]) == (
        after[0]["memories"],
        after[0]["applied"],
        after[1],
    )


@pytest.mark.parametrize("end", [b"\n", b""], ids=["complete", "without a line end"])
def test_a_log_that_grew_goes_on_where_it_was_left(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed, end: bytes
) -> None:
    """Lines without an id show whether one was taken twice."""
    log = tmp_path / "log.jsonl"
    line = jsonl(make_event("message", content="hello"))
    log.write_bytes(line.removesuffix(b"\n") + end)
    cli("replay", log, "--embedded", "--state-dir", tmp_path / "s")
    log.write_bytes(line * 2 + b"{\n" + line)
    done = cli("replay", log, "--embedded", "--state-dir", tmp_path / "s")
    assert info(cli, tmp_path / "s")["memories"] == 3
    assert done.stdout.startswith("log.jsonl: 2 events, 1 before were there from an earlier run; 1 refused")
    assert [reject["line"] for reject in parsed((tmp_path / "log.jsonl.rejects.jsonl").read_bytes())] == [3]


def test_another_log_under_the_same_name_is_read_from_its_start(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    log = tmp_path / "log.jsonl"
    for content in ("monday", "tuesday"):
        log.write_bytes(jsonl(make_event("message", content=content)))
        cli("replay", log, "--embedded", "--state-dir", tmp_path / "s")
    assert info(cli, tmp_path / "s")["memories"] == 2


def test_several_logs_go_in_one_after_the_other(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    first.write_bytes(jsonl(make_event("memory", id="a", content="tea")))
    second.write_bytes(jsonl(make_event("memory.update", memory_id="a", content="coffee"), b"{"))
    done = cli("replay", first, second, "--embedded", "--state-dir", tmp_path / "s")
    assert replayed(done, 1) == [
        "1.jsonl: 1 events",
        f"2.jsonl: 1 events; 1 refused, see {tmp_path / '2.jsonl.rejects.jsonl'}",
    ]
    assert memory_of(cli, tmp_path / "s", "a")["content"] == "coffee"
    assert [reject["line"] for reject in parsed((tmp_path / "2.jsonl.rejects.jsonl").read_bytes())] == [2]


def test_a_file_that_cannot_be_read_stops_no_other(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    """Of one that breaks off, what came before is there, however early that is; each is named at the end."""
    whole, cut, odd, last = (tmp_path / name for name in ("1.jsonl", "2.jsonl.gz", "3.odd", "4.jsonl"))
    whole.write_bytes(jsonl(make_event("message", content="first")))
    packed = gzip.compress(jsonl(*(make_event("message", id=f"{n}", content=f"{n * n}") for n in range(300))))
    cut.write_bytes(packed[: len(packed) * 2 // 3])
    odd.write_bytes(b"\x00\x01\x02")
    last.write_bytes(jsonl(make_event("message", id="last", content="last")))
    for options in (("--dry-run",), ()):
        done = cli("replay", whole, cut, odd, last, *options, "--embedded", "--state-dir", tmp_path / "s")
        assert done.returncode == 1
        *_, first_broken, second_broken = done.stderr.splitlines()
        assert f"{odd}: not a conversation log" in first_broken
        assert f"{cut}: cannot be read on" in second_broken
    assert memory_of(cli, tmp_path / "s", "last") is not None
    assert memory_of(cli, tmp_path / "s", "100") is not None


def test_a_reject_takes_the_place_of_one_that_a_kill_cut_off(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    log, rejects = tmp_path / "log.jsonl", tmp_path / "log.jsonl.rejects.jsonl"
    log.write_bytes(jsonl(make_event("message", content="hello"), b"{"))
    rejects.write_bytes(b'{"line":7}\n{"line":2,"err')
    cli("replay", log, "--embedded", "--state-dir", tmp_path / "s")
    assert [noted["line"] for noted in parsed(rejects.read_bytes())] == [7, 2]


def test_what_was_refused_is_noted_once_however_often_a_log_is_replayed(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl, parsed: Parsed
) -> None:
    log, rejects = tmp_path / "log.jsonl", tmp_path / "log.jsonl.rejects.jsonl"
    log.write_bytes(jsonl(b"{", make_event("message", content="hello"), b"{", b"\xff"))
    for number in range(3):
        done = cli("replay", log, "--embedded", "--state-dir", tmp_path / f"s{number}")
        assert "3 refused" in done.stdout
        assert [noted["line"] for noted in parsed(rejects.read_bytes())] == [1, 3, 4]
    log.write_bytes(jsonl(b"{", b"[", make_event("message", content="bye")))  # another log under the same name
    cli("replay", log, "--embedded", "--state-dir", tmp_path / "s")
    assert [(noted["line"], noted["record"]) for noted in parsed(rejects.read_bytes())][3:] == [(2, "[")]


def test_logs_that_share_a_file_of_rejects_both_have_theirs_in_it(
    cli: Cli, tmp_path: Path, jsonl: Jsonl, make_event: MakeEvent, parsed: Parsed
) -> None:
    logs, rejects = [tmp_path / name for name in ("1.jsonl", "2.jsonl")], tmp_path / "rejects.jsonl"
    for log in logs:
        log.write_bytes(jsonl(make_event("message", content="hello"), b"{"))
    for number in range(2):
        cli("replay", *logs, "--embedded", "--state-dir", tmp_path / f"s{number}", "--rejects", rejects)
        assert [noted["line"] for noted in parsed(rejects.read_bytes())] == [2, 2]


def test_a_rejects_file_that_cannot_be_written_stops_the_replay_with_one_line(
    start: Start, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(jsonl(make_event("message", content="a"), b"{"))
    (tmp_path / "log.jsonl.rejects.jsonl").mkdir()
    replay = start("replay", log, "--embedded", "--state-dir", tmp_path / "s")
    _, err = replay.communicate()
    said = [line for line in err.decode().splitlines() if line and not line.startswith("log.jsonl: ")]  # progress
    assert (replay.returncode, len(said)) == (1, 1), err.decode()
    assert said[0].startswith("recallflow: cannot write ")


# ── state ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_info_tells_settings_counts_and_positions(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    lines = [
        make_event("message", content="a"),
        make_event("message", content="b", user_id="bob"),
        make_event("memory", id="c", content="c"),
        make_event("memory.forget", memory_id="c"),
    ]
    cli("pipe", "--state-dir", tmp_path / "s", stdin=jsonl(*lines))
    told = info(cli, tmp_path / "s")
    wanted = {"partitions": 16, "embedder": "hash-384", "dimension": 384, "episode_gap_minutes": 30.0}
    assert told.items() >= (wanted | {"owners": 2, "memories": 2, "applied": {"stdin:0": 3}}).items()
    assert told["bytes"] > 0
    shown = cli("state", "info", "--state-dir", tmp_path / "s").stdout.splitlines()
    assert {" ".join(line.split()) for line in shown} >= {"memories 2", "owners 2", "stdin:0 3", "embedder hash-384"}


def test_the_hash_is_the_same_for_the_same_events_and_another_for_others(
    cli: Cli, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    hashes = []
    for name, content in (("1", "tea"), ("2", "tea"), ("3", "coffee")):
        line = jsonl(make_event("message", id="a", content=content))
        process([line], Settings(partitions=1), tmp_path / name)
        hashes.append(cli("state", "hash", "--state-dir", tmp_path / name).stdout)
    assert all(re.fullmatch(r"[0-9a-f]{64}\n", line) for line in hashes)
    assert [line == hashes[0] for line in hashes] == [True, True, False]


# ── schema ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_schema_prints_all_schemas_or_the_one_asked_for(cli: Cli) -> None:
    assert json.loads(cli("schema").stdout) == json.loads(json.dumps(schemas()))
    assert json.loads(cli("schema", "response").stdout)["$id"] == "urn:recallflow:schema:response"


# ── a user's mistakes ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, make_event: MakeEvent, jsonl: Jsonl) -> Path:
    state_dir = tmp_path_factory.mktemp("template") / "s"
    process([jsonl(make_event("message", content="hello"))], Settings(), state_dir)
    return state_dir


@pytest.fixture
def filled(template: Path, tmp_path: Path) -> Path:
    """A state directory with something in it."""
    return shutil.copytree(template, tmp_path / "filled")


NOW = f'"format_version": {keys.FORMAT_VERSION}'
COMMANDS = [
    ("pipe",),
    ("ask", "tea?"),
    ("remember", "tea"),
    ("replay", "LOG", "--embedded"),
    ("state", "info"),
    ("state", "hash"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_state_directory_of_another_format_version_is_refused(
    cli: Cli, filled: Path, tmp_path: Path, make_event: MakeEvent, jsonl: Jsonl, command: tuple[str, ...]
) -> None:
    (tmp_path / "log").write_bytes(jsonl(make_event("message", content="tea")))
    description = filled / "recallflow.json"
    description.write_text(description.read_text().replace(NOW, '"format_version": 3'))
    done = cli(*(part.replace("LOG", str(tmp_path / "log")) for part in command), "--state-dir", filled)
    says = f"is in format 3, this recallflow reads format {keys.FORMAT_VERSION}: use the version that wrote it, or"
    assert_one_line(done, 1, says)


def test_a_state_directory_of_another_embedder_is_refused(cli: Cli, filled: Path) -> None:
    description = filled / "recallflow.json"
    told = read_checked(description)
    write_checked(description, told | {"settings": told["settings"] | {"embedder": "all-MiniLM-L6-v2"}})
    done = cli("ask", "tea?", "--state-dir", filled)
    assert_one_line(
        done, 1, "embedder is 'all-MiniLM-L6-v2' there and 'hash-384' here. Use the settings it was created"
    )


def test_a_state_directory_of_other_settings_is_refused(cli: Cli, tmp_path: Path) -> None:
    process([], Settings(partitions=4, episode_gap_minutes=5), tmp_path / "s")
    done = cli("pipe", "--state-dir", tmp_path / "s")
    assert_one_line(done, 1, "other settings: episode_gap_ms is 300000 there and 1800000 here")


def test_a_state_directory_keeps_its_number_of_partitions(cli: Cli, tmp_path: Path) -> None:
    process([], Settings(partitions=4), tmp_path / "s")
    for partitions in ([], ["--partitions", "8"]):
        assert cli("remember", "tea", "--state-dir", tmp_path / "s", *partitions).returncode == 0
    assert describe(tmp_path / "s").fingerprint.partitions == 4


def test_a_state_directory_of_another_text_analysis_is_refused(cli: Cli, tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    fingerprint = replace(Settings().fingerprint(load_embedder("hash")), analysis="letters-0")
    StateDirectory.open(state_dir, fingerprint, 1024 * 1024).close()
    assert_one_line(
        cli("remember", "tea", "--state-dir", state_dir),
        1,
        "was built with the text analysis 'letters-0', this recallflow has 'unicode-2': use the version that built it, "
        "or start with a new directory, which reads the log anew",
    )


def test_what_is_applied_is_told_as_the_offset_that_it_is(cli: Cli, tmp_path: Path) -> None:
    cli("remember", "tea", "--state-dir", tmp_path / "s")
    *_, label, source = cli("state", "info", "--state-dir", tmp_path / "s").stdout.splitlines()
    assert (label, source.split()) == ("applied, up to offset", ["local:0", "0"])


def test_looking_into_a_state_directory_needs_no_settings(cli: Cli, tmp_path: Path) -> None:
    process([], Settings(partitions=4), tmp_path / "s")
    assert info(cli, tmp_path / "s")["partitions"] == 4


def test_a_state_directory_in_use_is_refused(
    cli: Cli, start: Start, filled: Path, make_event: MakeEvent, jsonl: Jsonl
) -> None:
    holder = start("pipe", "--state-dir", filled)
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write(jsonl(make_event("recall", query="hello")))
    holder.stdin.flush()
    assert holder.stdout.readline()  # it is up
    assert_one_line(
        cli("ask", "hello?", "--state-dir", filled), 1, f"is in use by recallflow pipe (process {holder.pid} on "
    )
    holder.communicate()
    assert holder.returncode == 0
    assert cli("ask", "hello?", "--state-dir", filled).returncode == 0


def test_a_folder_with_other_files_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    assert_one_line(cli("pipe", "--state-dir", tmp_path), 1, "holds other files (thesis.txt, …): give an empty or new")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("below", ["", "below", "further/below"])
def test_a_file_is_no_state_directory(cli: Cli, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    assert_one_line(cli("remember", "tea", "--state-dir", tmp_path / "file" / below), 1, "as a state directory")


@pytest.mark.parametrize("action", ["info", "hash"])
def test_looking_into_what_is_no_state_directory_creates_none(cli: Cli, tmp_path: Path, action: str) -> None:
    assert_one_line(cli("state", action, "--state-dir", tmp_path / "s"), 1, "there is no state directory")
    assert not (tmp_path / "s").exists()
    assert_one_line(cli("state", action, "--state-dir", tmp_path), 1, "is no state directory: it has no recallflow")


@pytest.mark.parametrize("content", ["", "{}", "[]", f"{{{NOW}}}", f'{{{NOW}, "settings": {{"a": 1}}}}'])
def test_a_broken_description_is_told(cli: Cli, filled: Path, content: str) -> None:
    (filled / "recallflow.json").write_text(content)
    assert_one_line(cli("pipe", "--state-dir", filled), 1, "recallflow.json cannot be read")


def test_partitions_that_changed_places_are_told(cli: Cli, filled: Path) -> None:
    (filled / "p000").rename(filled / "aside")
    (filled / "p001").rename(filled / "p000")
    (filled / "aside").rename(filled / "p001")
    assert_one_line(
        cli("pipe", "--state-dir", filled), 1, "holds state partition 1, not 0: put the folders back in place"
    )


def test_a_model_path_that_does_not_exist_is_told(cli: Cli, tmp_path: Path) -> None:
    choice = ["--embedder", "minilm", "--model-path", tmp_path / "nothing", "--state-dir", tmp_path / "s"]
    assert_one_line(cli("pipe", *choice), 2, "nothing is no folder; give that of the model")
    assert not (tmp_path / "s").exists()


def test_a_broken_model_is_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    choice = ["--embedder", "minilm", "--model-path", tmp_path, "--state-dir", tmp_path / "s"]
    assert_one_line(cli("pipe", *choice), 2, "all-MiniLM-L6-v2 from")


def test_the_hash_embedder_takes_no_model_path(cli: Cli, tmp_path: Path) -> None:
    done = cli("pipe", "--model-path", tmp_path, "--state-dir", tmp_path / "s")
    assert_one_line(done, 2, "leave --model-path out, or give another --embedder")


USAGE = {
    "no state directory to ask": (
        ("ask", "tea?"),
        "give --state-dir DIR, where no engine runs, or --bootstrap-servers HOST:PORT",
    ),
    "no state directory to remember in": (
        ("remember", "tea"),
        "give --state-dir DIR, where no engine runs, or --bootstrap-servers",
    ),
    "no state directory to replay into": (("replay", "LOG", "--embedded"), "give --embedded --state-dir DIR"),
    "a replay to Kafka": (("replay", "LOG", "--state-dir", "DIR"), "give --embedded --state-dir DIR"),
    "no workers": (
        ("replay", "LOG", "--embedded", "--state-dir", "DIR", "--workers", "0"),
        "workers must be at least 1, not 0",
    ),
    "a missing log": (("replay", "DIR", "--embedded", "--state-dir", "DIR"), "no such file; check the path"),
    "a missing log in a dry run": (("replay", "DIR", "--dry-run"), "no such file; check the path"),
    "a folder without logs": (("replay", "FOLDER", "--dry-run"), "a folder without files; give one that holds logs"),
    "an empty log": (("replay", "EMPTY", "--dry-run"), "empty; give a file that holds a conversation"),
    "no conversation log": (("replay", "BINARY", "--dry-run"), "not a conversation log: starts with"),
}


@pytest.mark.parametrize("name", USAGE)
def test_a_wrong_call_is_told_in_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_event: MakeEvent, jsonl: Jsonl, name: str
) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    command, says = USAGE[name]
    (tmp_path / "log").write_bytes(jsonl(make_event("message", content="tea")))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "folder").mkdir()
    paths = {"LOG": "log", "EMPTY": "empty", "BINARY": "binary", "FOLDER": "folder", "DIR": "new"}
    done = cli(*(tmp_path / paths[part] if part in paths else part for part in command))
    assert_one_line(done, 2, says)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "command",
    [(), ("frob",), ("replay",), ("state",), ("schema", "x"), ("ask",), ("ask", "a", "--mode", "b")],
    ids=" ".join,
)
def test_argparse_tells_usage(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(r"usage: recallflow", done.stderr)


@pytest.mark.parametrize(
    "command", [(), ("demo",), ("pipe",), ("remember",), ("ask",), ("replay",), ("state",), ("schema",)]
)
def test_every_command_has_help(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: recallflow")


def test_the_sample_log_is_a_clean_log(cli: Cli) -> None:
    done = cli("replay", sample_path("conversations.jsonl"), "--dry-run")
    assert done.stdout.startswith("conversations.jsonl: events\n")
    assert (done.returncode, dry_run(done)["events"], dry_run(done)["refused"]) == (0, "205", "0")
