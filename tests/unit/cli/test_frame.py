"""Behaviour that all commands share, and the examples of their help."""

import base64
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import argcomplete
import pytest

from recallflow.cli import graph, main, memories, parser, services
from recallflow.cli.commands import GROUPS, commands
from recallflow.cli.flags import FLAGS
from recallflow.cli.parser import SYNONYMS
from recallflow.connectors.checkpoints.generation import CheckpointOrigin
from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.connectors.embedders import NAMES
from recallflow.control import RolloutMode
from recallflow.flows.config import KEYS, LOG_FORMATS, Config, RawSetting, is_secret, read_config
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.queries import Mode
from recallflow.samples import sample_path
from recallflow.schema import schemas
from recallflow.state import keys
from tests.unit.cli.harness import PARSER, Cli, closed_reader, event, jsonl, on_files

HEAVY = ("faiss", "rocksdict", "bytewax", "pyarrow", "openai", "confluent_kafka", "fastapi", "numpy")
LOADED = f"""
import sys
from recallflow.cli.commands import commands
for parser in commands().subparsers():
    parser.format_help()
commands().format_help()
print(*(name for name in {HEAVY} if name in sys.modules))
"""
LEAVES = [one for one in PARSER.subparsers() if one.get_default("run")]


def test_help_imports_no_large_library() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_help_lists_every_command_in_one_group() -> None:
    added = PARSER._subcommands()
    assert added is not None
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(set(named))
    assert set(added.choices) <= set(named)


@pytest.mark.parametrize("words", [[], ["state"], ["keys"]], ids=" ".join)
def test_missing_command_shows_help(cli: Cli, words: list[str]) -> None:
    done = cli(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == cli(*words, "--help").stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = cli("--help").stdout + "\n".join(one.format_help() for one in LEAVES)
    lines = [line for line in shown.splitlines() if not line.startswith("usage: ")]
    assert [line for line in lines if len(line) > columns] == []


@pytest.mark.parametrize("one", LEAVES, ids=lambda one: one.prog)
def test_command_has_a_description_and_short_examples(one: parser.Parser) -> None:
    assert one.examples
    assert one.description
    assert [example for example in one.examples if one.prog not in example] == []
    assert max(len(line) for example in one.examples for line in example.splitlines()) <= 110


def test_help_states_the_choices_and_defaults_of_the_settings() -> None:
    """Help does not import the settings, as that would take long."""
    assert set(graph.MODES) == set(get_args(RolloutMode))
    assert set(memories.MODES) == set(get_args(Mode))
    assert list(services.SCHEMAS) == sorted(schemas())
    assert all(name in FLAGS["engine.embedder"].help for name in NAMES)
    assert all(name in FLAGS["run.log_format"].help for name in LOG_FORMATS)
    assert FLAGS.keys() <= KEYS.keys()
    given = {key: RawSetting(flag.name, flag.default) for key, flag in FLAGS.items() if flag.default is not None}
    assert read_config(given, {})[0] == Config()
    assert {key for key, flag in FLAGS.items() if flag.repeated} == {k for k in FLAGS if KEYS[k] == tuple[str, ...]}


def test_module_runs_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["recallflow", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("recallflow", run_name="__main__")
    assert (ended.value.code, capsys.readouterr().out) == (0, f"recallflow {version('recallflow')}\n")


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("rember tea", "recallflow remember?"), ("import x.json", "recallflow replay?"),
        ("SEARCH tea", "recallflow ask?"), ("restore", "recallflow state restore?"),
        ("keys lst acme", "recallflow keys list?"), ("keys new acme", "recallflow keys create?"),
        ("frob", "recallflow --help"), ("remember tea --sate-dir s", "did you mean --state-dir?"),
        ("remember tea --state=s", "did you mean --state-dir?"), ("ask tea --state s", "did you mean --state-dir?"),
        ("ask tea --mode hybird", "did you mean hybrid?"), ("ask tea more words", "more words"),
        ("graph rollout acme canry --by a --why b", "did you mean canary?"),
        ("pipe --state-folder s", "did you mean --state-dir?"), ("schema x", "query-event"), ("replay", "FILE"),
        ("ask", "QUESTION"),
    ],
)  # fmt: skip
def test_mistyped_word_is_refused_with_a_suggestion(cli: Cli, line: str, remedy: str) -> None:
    done = cli(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    usage, said = done.stderr.splitlines()
    assert usage.startswith("usage: recallflow")
    assert remedy in said


def test_synonyms_stand_for_existing_commands() -> None:
    existing = {" ".join(one.prog.split()[1:]) for one in LEAVES}
    assert set(SYNONYMS.values()) <= existing | {words.split()[-1] for words in existing}


FILL = {
    "remember": ("remember", "tea"), "replay": ("replay", "LOG", "--embedded"), "pipe": ("pipe",),
    "run": ("run", "--bootstrap-servers", "127.0.0.1:1"), "enrich": ("enrich", "--bootstrap-servers", "127.0.0.1:1"),
    "serve": ("serve", "--port", "0"), "mcp": ("mcp",),
}  # fmt: skip
READ = (("ask", "tea?"), ("list",), ("state", "info"), ("export", "default", "user"))
REFUSED = {
    "no text": ("remember", ""), "no user": ("remember", "tea", "--user", ""),
    "no kind": ("remember", "tea", "--kind", " "), "no control file": ("pipe", "--control", "none.jsonl"),
    "no port": ("serve", "--port", "99999"), "no address": ("mcp", "--http", "here"),
    "no log": ("replay", "none.jsonl", "--embedded"),
    "no model": ("replay", "LOG", "--embedded", "--embedder", "onnx"),
    "no broker": ("run", "--bootstrap-servers", "127.0.0.1:99999"),
    "unreachable broker": ("run", "--bootstrap-servers", "127.0.0.1:1"),
}  # fmt: skip


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a log to import. A broker is given up at once."""
    monkeypatch.setattr("recallflow.connectors.kafka.topic_reader.GIVE_UP_S", 0.1)
    (tmp_path / "log.jsonl").write_bytes(b'{"role": "user", "content": "tea"}\n')
    return str(tmp_path / "log.jsonl")


def test_every_command_that_creates_directories_is_tested() -> None:
    makers = [one.prog for one in LEAVES if "--create" in one._option_string_actions]
    elsewhere = {"state"}  # tests/processes/test_killed.py
    assert {prog.split()[1] for prog in makers} - elsewhere == set(FILL)


@pytest.mark.parametrize("words", [*FILL.values(), *READ], ids=" ".join)
def test_missing_directory_is_refused_with_a_suggestion(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], log: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "recallflow.json").touch()
    given = [log if word == "LOG" else word for word in words]
    assert main([*given, "--state-dir", str(tmp_path / "memroy")]) == 2
    said = capfd.readouterr().err
    assert f"{tmp_path / 'memroy'}; did you mean {tmp_path / 'memory'}?" in said
    assert ("--create" in said) is (words not in READ)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log.jsonl", "memory"]


@pytest.mark.parametrize("words", [*FILL.values(), ("ask", "tea?"), ("state", "info")], ids=" ".join)
def test_empty_directory_name_is_refused(capfd: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert main([*words, "--state-dir", ""]) == 2
    assert "--state-dir is empty" in capfd.readouterr().err


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_refused_command_creates_no_directory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], log: str, words: tuple[str, ...]
) -> None:
    given = [log if word == "LOG" else word for word in words]
    assert main([*given, "--state-dir", str(tmp_path / "memory"), "--create"]) in (1, 2)
    assert capfd.readouterr().err.startswith(("recallflow: ", "20"))  # an engine's lines begin with their time
    assert not (tmp_path / "memory").exists()


def test_directory_is_created_on_request_and_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["remember", "tea", "--state-dir", str(tmp_path / "empty")]) == 0
    for text in ("tea", "milk"):
        assert main(["remember", text, "--state-dir", str(tmp_path / "new"), "--create"]) == 0
    assert main(["ask", "milk?", "--state-dir", str(tmp_path / "new")]) == 0
    assert "tea" in capfd.readouterr().out


def test_no_option_takes_a_secret() -> None:
    assert [key for key in FLAGS if is_secret(key.rpartition(".")[2])] == []


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.jaas.config"])
def test_secret_on_the_command_line_is_refused(cli: Cli, name: str) -> None:
    done = cli("topics", "create", "--bootstrap-servers", "127.0.0.1:1", "-X", f"{name}=hunter2")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"RECALLFLOW_KAFKA_LIBRDKAFKA_{name.upper().replace('.', '_')}" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_readable_secrets_give_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[llm]\nkey = "hunter2"\n[kafka.librdkafka]\n"sasl.password" = "hunter2"\n')
    file.chmod(mode)
    assert (read_config({}, {}, file)[0].llm.key, len(caplog.messages)) == ("hunter2", warned)
    assert all("llm.key, kafka.librdkafka.sasl.password" in line and "hunter2" not in line for line in caplog.messages)


@pytest.mark.parametrize(("variable", "folder"), [("XDG_CONFIG_HOME", "."), ("HOME", ".config")])
def test_users_own_file_is_read_unless_another_is_named(tmp_path: Path, variable: str, folder: str) -> None:
    own = tmp_path / folder / "recallflow" / "config.toml"
    environment = {variable: str(tmp_path)}
    assert read_config({}, environment)[0] == Config()
    own.parent.mkdir(parents=True)
    own.write_text("[engine]\npartitions = 3\n")
    assert read_config({}, environment)[0].engine.partitions == 3
    (tmp_path / "other.toml").write_text("[engine]\npartitions = 5\n")
    named = environment | {"RECALLFLOW_CONFIG": str(tmp_path / "other.toml")}
    assert read_config({}, named)[0].engine.partitions == 5


@pytest.mark.parametrize("line", ["schema", "run --help", "completion bash", "--help"])
def test_closed_output_ends_a_command_quietly(line: str) -> None:
    with closed_reader() as unread:
        done = on_files(*line.split(), stdout=unread)
    assert (done.returncode, done.stderr) == (141, b"")


def test_interrupt_ends_a_command_quietly(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("recallflow.samples.sample_events", interrupted)
    done = cli("demo")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("recallflow rep", ["replay"]), ("recallflow state re", ["restore"]),
        ("recallflow graph rollout acme ", ["off", "shadow", "canary"]),
        ("recallflow ask --mode en", ["entity_focused"]), ("recallflow remember tea --state-d", ["--state-dir"]),
        ("recallflow completion ", ["bash", "zsh", "fish"]), ("recallflow replay con", ["conversations.jsonl"]),
        ("recallflow state info --state-dir mem", ["memory/"]),
    ],
)  # fmt: skip
def test_line_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, offered: list[str]) -> None:
    """Ask as a shell does, by argcomplete's protocol, without the end of the process."""
    told = io.StringIO()
    ended = partial(argcomplete.autocomplete, exit_method=sys.exit, output_stream=told)
    (tmp_path / "conversations.jsonl").touch()
    (tmp_path / "memory").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recallflow.cli.commands.commands", commands)  # argcomplete changes the parser
    monkeypatch.setattr("argcomplete.finders.CompletionFinder._init_debug_stream", lambda _: None)  # takes descriptor 9
    monkeypatch.setattr(argcomplete, "autocomplete", ended)
    for name, value in {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " ",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }.items():
        monkeypatch.setenv(name, value)
    assert main([]) == 0
    assert set(offered) <= set(told.getvalue().split())


KAFKA = "localhost:9092"
SERVE = "recallflow serve --state-dir memory"
MOVING = ("recallflow state move", "recallflow state split", "recallflow state merge")  # need several partitions
EXAMPLES = [*dict.fromkeys(example for one in [PARSER, *PARSER.subparsers()] for example in one.examples)]
LOCAL = [one for one in EXAMPLES if KAFKA not in one]


def words(example: str) -> list[str]:
    """Return the command's words after `recallflow`, without what a shell takes for itself."""
    command = re.search(r"recallflow [^|<>()]+", example)
    assert command is not None
    return shlex.split(command[0])[1:]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that examples name."""
    folder = tmp_path_factory.mktemp("examples")
    for number, name in enumerate(("old.key", "new.key")):
        (folder / name).write_bytes(base64.b64encode(bytes([number] * 32)))
    shutil.copy(sample_path("conversations.jsonl"), folder)
    owner = {"tenant_id": "default", "user_id": "user"}
    told = [
        event("memory", id="home", content="I moved from Leeds to Porto in March", **owner),
        event("memory", content="My sister Ana is allergic to walnuts", **owner),
    ]
    for name, partitions in (("memory", 1), ("several", Settings().partitions)):
        process(jsonl(*told).splitlines(), Settings(partitions=partitions), folder / name)
    shutil.copytree(folder / "memory", folder / "engine")
    sealed = ["--state-dir", str(folder / "sealed"), "--create", "--master-key-file", str(folder / "old.key")]
    assert main(["remember", "tea", *sealed, "--partitions", "1"]) == 0
    assert main(["state", "checkpoint", str(folder / "checkpoint"), "--state-dir", str(folder / "engine")]) == 0
    about = CheckpointOrigin(keys.FORMAT_VERSION, 0, 16, "memory.events:0", {}, "acme", "run", 0, {})
    CheckpointStore.open((folder / "checkpoints").as_uri()).save(0, folder / "checkpoint" / "p000", about)
    control = ["--control", str(folder / "control.jsonl")]
    assert main(["categories", "set", "acme", "food", "--description", "what they eat", *control]) == 0
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    example = request.node.callspec.params["example"]
    for path in prepared.iterdir():
        source = prepared / "several" if path.name == "memory" and example.startswith(MOVING) else path
        if re.search(rf"\b{re.escape(path.name)}\b", example):
            (shutil.copytree if path.is_dir() else shutil.copy)(source, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder", "mcp")
@pytest.mark.parametrize("example", LOCAL)
def test_help_example_succeeds(prepared: Path, example: str) -> None:
    piped = (prepared / "conversations.jsonl").read_bytes() if re.search("[|<]", example) else b""
    done = on_files(*words(example), *(["--print-config"] if example == SERVE else []), stdin=piped)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("example", [one for one in EXAMPLES if KAFKA in one])
def test_help_example_for_kafka_is_accepted_by_the_parser(example: str) -> None:
    PARSER.parse_args(words(example))
