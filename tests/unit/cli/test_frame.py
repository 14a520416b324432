"""What all commands have in common: help, mistakes, state directories, secrets, and how a process ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import pytest

from recallflow.cli import graph, main, memory, parser, schema
from recallflow.cli.commands import GROUPS, commands
from recallflow.cli.options import FLAGS
from recallflow.cli.parser import SYNONYMS, leaves
from recallflow.connectors.embedders import NAMES
from recallflow.control import RolloutMode
from recallflow.flows.config import KEYS, LOG_FORMATS, Config, Given, is_secret, read_config
from recallflow.queries import Mode
from recallflow.schema import schemas

Cli = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[bytes]]

HEAVY = ("faiss", "rocksdict", "bytewax", "pyarrow", "openai", "confluent_kafka", "fastapi", "numpy")
LOADED = f"""
import sys
from recallflow.cli.commands import commands
from recallflow.cli.parser import leaves
for parser in leaves(commands()):
    parser.format_help()
commands().format_help()
print(*(name for name in {HEAVY} if name in sys.modules))
"""
LEAVES = [one.prog for one in leaves(commands())]


# ── help ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_help_loads_nothing_that_takes_long() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_help_names_every_command_in_a_group() -> None:
    added = commands()._subcommands()
    assert added is not None
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(set(named))
    assert set(added.choices) <= set(named)


@pytest.mark.parametrize("words", [[], ["state"], ["keys"]], ids=" ".join)
def test_without_a_command_help_is_shown_and_nothing_done(cli: Cli, words: list[str]) -> None:
    done = cli(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == cli(*words, "--help").stdout


@pytest.mark.parametrize("columns", ["80", "120"])
def test_help_is_as_wide_as_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for prog in ["recallflow", *LEAVES]:
        shown = cli(*prog.split()[1:], "--help").stdout
        assert [line for line in shown.splitlines()[1:] if len(line) > int(columns)] == [], prog


def test_help_that_is_piped_has_whole_lines_and_no_colours(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = cli("run", "--help").stdout
    assert "\x1b" not in shown
    embedder = next(line for line in shown.splitlines() if "--embedder NAME" in line)
    assert embedder.endswith("embedding model: hash, static, minilm, onnx or openai (default: hash)")
    assert next(line for line in shown.splitlines() if "any librdkafka option" in line).endswith("--config file")


def test_a_newline_of_a_description_stays_one(cli: Cli) -> None:
    assert "\nevents_per_s: memory events a second" in cli("quota", "set", "--help").stdout


@pytest.mark.parametrize(
    "words", [["-c", "from recallflow.cli import main; raise SystemExit(main())"], ["-m", "recallflow"]]
)
def test_the_module_is_the_command(words: list[str]) -> None:
    done = subprocess.run([sys.executable, *words, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"recallflow {version('recallflow')}\n"


@pytest.mark.parametrize("one", [*leaves(commands())], ids=lambda one: one.prog)
def test_every_command_has_examples_that_fit_a_terminal(one: parser.Parser) -> None:
    assert one.examples
    for example in one.examples:
        assert one.prog in example
        assert max(map(len, example.splitlines())) <= 110
    assert one.description


# ── what help says by itself, as it would take long to ask ────────────────────────────────────────────────────────


def test_choices_and_defaults_are_those_of_the_settings() -> None:
    assert set(graph.MODES) == set(get_args(RolloutMode))
    assert set(memory.MODES) == set(get_args(Mode))
    assert list(schema.NAMES) == sorted(schemas())
    assert all(name in FLAGS["engine.embedder"].help for name in NAMES)
    assert all(name in FLAGS["run.log_format"].help for name in LOG_FORMATS)
    assert FLAGS.keys() <= KEYS.keys()
    given = {key: Given(flag.name, flag.default) for key, flag in FLAGS.items() if flag.default is not None}
    assert read_config(given, {})[0] == Config()
    assert {key for key, flag in FLAGS.items() if flag.repeated} == {k for k in FLAGS if KEYS[k] == tuple[str, ...]}


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("rember tea", "there is no command 'rember'; did you mean recallflow remember?"),
        ("import x.json", "there is no command 'import'; did you mean recallflow replay?"),
        ("SEARCH tea", "there is no command 'SEARCH'; did you mean recallflow ask?"),
        ("restore", "there is no command 'restore'; did you mean recallflow state restore?"),
        ("keys lst acme", "there is no command 'lst'; did you mean recallflow keys list?"),
        ("keys new acme", "there is no command 'new'; did you mean recallflow keys create?"),
        ("frob", "there is no command 'frob' (recallflow --help)"),
        ("remember tea --sate-dir s", "there is no option --sate-dir; did you mean --state-dir?"),
        ("remember tea --state=s", "there is no option --state; did you mean --state-dir?"),
        ("ask tea --mode hybird", "'hybird' is none of"),
        ("ask tea --mode hybird", "did you mean hybrid?"),
        ("ask tea more words", "too many words: more words"),
        ("graph rollout acme canry --by a --why b", "did you mean canary?"),
    ],
)
def test_what_was_meant_is_said(cli: Cli, line: str, says: str) -> None:
    done = cli(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    usage, said = done.stderr.splitlines()
    assert usage.startswith("usage: recallflow")
    assert says in said


def test_options_are_not_abbreviated(cli: Cli) -> None:
    assert cli("ask", "tea?", "--state", "s").returncode == 2


def test_words_of_other_programs_stand_for_commands_that_there_are() -> None:
    there = {" ".join(prog.split()[1:]) for prog in LEAVES}
    last = {words.split()[-1] for words in there}
    assert set(SYNONYMS.values()) <= there | last


# ── the state directory ───────────────────────────────────────────────────────────────────────────────────────────


FILL = {
    "remember": ("remember", "tea"),
    "replay": ("replay", "LOG", "--embedded"),
    "pipe": ("pipe",),
    "run": ("run", "--bootstrap-servers", "127.0.0.1:1"),
    "enrich": ("enrich", "--bootstrap-servers", "127.0.0.1:1"),
    "serve": ("serve", "--port", "0"),
    "mcp": ("mcp",),
}


def test_every_command_that_makes_directories_is_tried() -> None:
    makers = [one.prog for one in leaves(commands()) if "--create" in one._option_string_actions]
    elsewhere = {"state"}  # tests/recovery/test_moving.py
    assert {prog.split()[1] for prog in makers} - elsewhere == set(FILL)


@pytest.mark.parametrize("words", FILL.values(), ids=FILL)
def test_a_directory_that_is_not_there_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"{}\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "recallflow.json").touch()
    given = [str(log) if word == "LOG" else word for word in words]
    assert main([*given, "--state-dir", str(tmp_path / "memroy")]) == 2
    said = capfd.readouterr().err
    assert f"there is no state directory {tmp_path / 'memroy'}; did you mean {tmp_path / 'memory'}?" in said
    assert "--create makes it" in said
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log.jsonl", "memory"]


@pytest.mark.parametrize("words", [("ask", "tea?"), ("list",), ("state", "info"), ("export", "default", "user")])
def test_who_looks_is_told_which_directory_may_be_meant(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "recallflow.json").touch()
    assert main([*words, "--state-dir", str(tmp_path / "memroy")]) == 1
    said = capfd.readouterr().err
    assert f"there is no state directory {tmp_path / 'memroy'}; did you mean {tmp_path / 'memory'}?" in said
    assert [one.name for one in tmp_path.iterdir()] == ["memory"]


@pytest.mark.parametrize("words", [*FILL.values(), ("ask", "tea?"), ("state", "info")], ids=" ".join)
def test_a_name_of_no_letters_is_no_directory(capfd: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert main([*words, "--state-dir", ""]) == 2
    assert "--state-dir is empty" in capfd.readouterr().err


REFUSED = {
    "no text": ("remember", ""),
    "no user": ("remember", "tea", "--user", ""),
    "no kind": ("remember", "tea", "--kind", " "),
    "no control file": ("pipe", "--control", "none.jsonl"),
    "no port": ("serve", "--port", "99999"),
    "no address": ("mcp", "--http", "here"),
    "no log": ("replay", "none.jsonl", "--embedded"),
    "no model": ("replay", "LOG", "--embedded", "--embedder", "onnx"),
    "no broker": ("run", "--bootstrap-servers", "127.0.0.1:99999"),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_a_command_that_is_refused_makes_no_directory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"{}\n")
    given = [str(log) if word == "LOG" else word for word in words]
    assert main([*given, "--state-dir", str(tmp_path / "memory"), "--create"]) in (1, 2)
    assert capfd.readouterr().err.startswith(("recallflow: ", "20"))  # an engine's lines begin with their time
    assert not (tmp_path / "memory").exists()


def test_a_replay_that_has_no_dataflow_makes_no_directory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "recallflow.flows.lines" or name.startswith("bytewax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("recallflow.flows.lines", raising=False)
    monkeypatch.setitem(sys.modules, "bytewax", None)  # as on a Python that it has no wheel for
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"role": "user", "content": "tea"}\n')
    assert main(["replay", str(log), "--embedded", "--state-dir", str(tmp_path / "memory"), "--create"]) == 2
    assert "this runs on Bytewax" in capfd.readouterr().err
    assert not (tmp_path / "memory").exists()


def test_a_directory_is_made_where_it_is_to_be_and_kept_where_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["remember", "tea", "--state-dir", str(tmp_path / "empty")]) == 0
    assert main(["remember", "tea", "--state-dir", str(tmp_path / "new"), "--create"]) == 0
    assert main(["remember", "milk", "--state-dir", str(tmp_path / "new"), "--create"]) == 0
    assert main(["ask", "milk?", "--state-dir", str(tmp_path / "new")]) == 0
    assert "tea" in capfd.readouterr().out


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_option_takes_a_secret() -> None:
    assert [key for key in FLAGS if is_secret(key.rpartition(".")[2])] == []


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.jaas.config"])
def test_a_secret_on_the_command_line_is_refused(cli: Cli, name: str) -> None:
    done = cli("topics", "create", "--bootstrap-servers", "127.0.0.1:1", "-X", f"{name}=hunter2")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"-X {name}: other users of the machine see" in done.stderr
    assert f"RECALLFLOW_KAFKA_LIBRDKAFKA_{name.upper().replace('.', '_')}" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_file_of_secrets_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[llm]\nkey = "hunter2"\n[kafka.librdkafka]\n"sasl.password" = "hunter2"\n')
    file.chmod(mode)
    assert read_config({}, {}, file)[0].llm.key == "hunter2"
    said = [f"{file}: others can read it, and it holds llm.key, kafka.librdkafka.sasl.password: chmod 600 {file}"]
    assert caplog.messages == (said if warned else [])


def test_a_file_without_secrets_is_for_everybody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "c.toml").write_text("[engine]\npartitions = 3\n")
    (tmp_path / "c.toml").chmod(0o644)
    assert read_config({}, {}, tmp_path / "c.toml")[0].engine.partitions == 3
    assert caplog.messages == []


@pytest.mark.parametrize(("variable", "folder"), [("XDG_CONFIG_HOME", "."), ("HOME", ".config")])
def test_the_user_s_own_file_holds_where_none_is_named(tmp_path: Path, variable: str, folder: str) -> None:
    own = tmp_path / folder / "recallflow" / "config.toml"
    assert read_config({}, {variable: str(tmp_path)})[0] == Config()
    own.parent.mkdir(parents=True)
    own.write_text("[engine]\npartitions = 3\n")
    (tmp_path / "other.toml").write_text("[engine]\npartitions = 5\n")
    environment = {variable: str(tmp_path)}
    assert read_config({}, environment)[0].engine.partitions == 3
    named = environment | {"RECALLFLOW_CONFIG": str(tmp_path / "other.toml")}
    assert read_config({}, named)[0].engine.partitions == 5


# ── how a process ends ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "words", [["schema"], ["run", "--help"], ["demo", "--json"], ["completion", "bash"], ["--help"]]
)
def test_a_reader_that_has_enough_is_no_error(words: list[str]) -> None:
    nobody, written = os.pipe()
    os.close(nobody)
    done = subprocess.run(
        [sys.executable, "-m", "recallflow", *words], stdout=written, stderr=subprocess.PIPE, check=False
    )
    os.close(written)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_ends_a_command_quietly(start: Start) -> None:
    process = start("pipe")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"type": "user.stats", "tenant_id": "acme", "user_id": "ann"}\n')
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert (process.returncode, said) == (130, b"")


# ── completion ────────────────────────────────────────────────────────────────────────────────────────────────────


def completed(line: str, folder: Path) -> list[str]:
    """What a shell is told, by argcomplete's protocol."""
    told = folder / "told"
    environment = os.environ | {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(told),
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " ",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    words = [sys.executable, "-c", "import sys; from recallflow.cli import main; sys.argv[0] = 'recallflow'; main()"]
    subprocess.run(words, env=environment, cwd=folder, check=True, capture_output=True)
    return told.read_text().split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("recallflow rep", ["replay"]),
        ("recallflow state re", ["restore"]),
        ("recallflow graph rollout acme ", ["off", "shadow", "canary"]),
        ("recallflow ask --mode en", ["entity_focused"]),
        ("recallflow remember tea --state-d", ["--state-dir"]),
        ("recallflow completion ", ["bash", "zsh", "fish"]),
        ("recallflow replay con", ["conversations.jsonl"]),
        ("recallflow state info --state-dir mem", ["memory/"]),
    ],
)
def test_a_line_is_completed(tmp_path: Path, line: str, offered: list[str]) -> None:
    (tmp_path / "conversations.jsonl").touch()
    (tmp_path / "memory").mkdir()
    assert set(offered) <= set(completed(line, tmp_path))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(cli: Cli, shell: str) -> None:
    script = cli("completion", shell).stdout
    assert "recallflow" in script
    assert "_ARGCOMPLETE" in script


@pytest.mark.needs("bash")
def test_bash_completes_what_is_typed(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "s.sh").write_text(cli("completion", "bash").stdout)
    (tmp_path / "recallflow").symlink_to(Path(sys.executable).with_name("recallflow"))
    typed = """
        . ./s.sh
        COMP_WORDS=(recallflow rep) COMP_CWORD=1 COMP_LINE="recallflow rep" COMP_POINT=14
        COMP_TYPE=9 COMP_WORDBREAKS=" "
        _python_argcomplete recallflow rep recallflow
        echo "${COMPREPLY[@]}"
    """
    named = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", typed], cwd=tmp_path, env=named, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["replay"], done.stderr
