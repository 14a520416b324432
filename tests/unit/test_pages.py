"""The pages of docs/, the examples of examples/ and the site work as shown."""

import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recallflow.cli.commands import commands
from tests.chat_model import Answer, Messages, chat_model
from tests.conftest import GIVE_UP_S
from tests.example_pages import EXAMPLES, commands_of, environment
from tests.pages import DOCS, FENCED, RUN, blocks, run
from tools.reference import PAGES

pytestmark = pytest.mark.examples
LOCAL = (
    "concepts/overview.md", "how-to/assistant.md", "how-to/backfill.md", "how-to/evaluation.md",
    "how-to/from-mem0.md", "how-to/from-zep.md", "start/python.md",
)  # fmt: skip
WITH_A_BROKER = ("start/quickstart.md", "how-to/chat-platform.md", "how-to/cloudevents.md", "how-to/runbook.md")
# Pages whose blocks run elsewhere, or show calls without their surroundings.
NOT_RUN = (
    "how-to/access-control.md", "how-to/checkpoints.md", "how-to/control-events.md", "how-to/dead-letters.md",
    "how-to/embedders.md", "how-to/encryption.md", "how-to/erasure.md", "how-to/frameworks.md", "how-to/gateway.md",
    "how-to/graph-rollout.md", "how-to/install.md", "how-to/kafka.md", "how-to/kafka-authentication.md",
    "how-to/mcp.md", "how-to/mem0-clients.md", "how-to/models.md", "how-to/monitoring.md", "how-to/quotas.md",
    "how-to/settings.md", "how-to/schema-registry.md", "how-to/several-machines.md", "how-to/state.md",
    "how-to/tracing.md", "how-to/zep-clients.md",
)  # fmt: skip
WITHOUT_BLOCKS = (
    "comparison.md", "figures.md", "how-to/alerts.md", "how-to/importing.md", "how-to/kubernetes.md",
    "how-to/upgrading.md", "index.md",
)  # fmt: skip


@pytest.mark.parametrize("page", LOCAL)
def test_examples_of_a_page_work(page: str, tmp_path: Path) -> None:
    ran = 0
    for block in blocks(page):
        assert block.language != "sh"
        printed = run(block.language, block.code, tmp_path)
        assert [line for line in block.shows if line not in printed] == [], printed
        ran += 1
    assert ran > 0


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_documented_commands_parse(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = commands()
    for _, code in FENCED.findall(page.read_text()):
        for line in re.findall(r"^(?:\$ )?recallflow (.+)$", code.replace("\\\n", " "), re.M):
            if "…" not in line:
                command = re.split(r" <<| &$|\s+#", line)[0]
                try:
                    parser.parse_args(shlex.split(command))
                except SystemExit:
                    pytest.fail(f"recallflow {line}: {capsys.readouterr().err}")


def test_every_page_of_the_guide_is_run() -> None:
    guide = {path.relative_to(DOCS).as_posix() for path in (*(DOCS / "how-to").glob("*.md"), *DOCS.glob("index.md"))}
    assert guide <= {*LOCAL, *WITH_A_BROKER, *NOT_RUN, *WITHOUT_BLOCKS}
    for page in WITHOUT_BLOCKS:
        assert [language for language, _ in FENCED.findall((DOCS / page).read_text()) if language in RUN] == [], page


def run_in(command: str, folder: Path, **more: str) -> str:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(**more), capture_output=True, text=True,
        timeout=GIVE_UP_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of the examples, where its commands leave nothing in ours."""
    for file in (EXAMPLES / request.param).iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("copied", ["year_of_logs"], indirect=True)
def test_a_year_is_replayed_and_asked_about_as_of_days(copied: Path) -> None:
    *before, ask = commands_of("year_of_logs")
    for command in before:
        run_in(command, copied)
    page = (EXAMPLES / "year_of_logs" / "README.md").read_text()
    assert run_in(ask, copied) == page.partition("```text\n")[2].partition("```")[0]


def model(messages: Messages) -> Answer:
    question = messages[1]["content"]
    if messages[-1]["role"] == "tool":
        return f"I know: {messages[-1]['content']}"
    told, please, _ = question.partition(" Please remember that.")
    return ("remember", {"text": told}) if please else ("search", {"query": question})


@pytest.mark.parametrize("copied", ["agent_loop"], indirect=True)
def test_agent_remembers_across_runs(copied: Path) -> None:
    tell, ask = commands_of("agent_loop")
    with chat_model(model) as found:
        assert run_in(tell, copied, **found).startswith("I know: remembered as ")
        assert "I moved to Porto." in run_in(ask, copied, **found)


@pytest.mark.parametrize("copied", ["agent_loop"], indirect=True)
def test_agent_with_an_endless_model_is_stopped(copied: Path) -> None:
    with chat_model(lambda _: ("nothing", {"query": "again"})) as found:
        assert "could not come to an answer" in run_in("python agent.py ann 'Where do I live?'", copied, **found)


ROOT = Path(__file__).parents[2]
WRITTEN = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
WRITTEN = [path for path in WRITTEN if "node_modules" not in path.parts]
BLOCK = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
LINK = re.compile(r"\]\(<?(?!\w+:)([^)\s>]*)>?\)|(?:src|srcset|href)=\"(?!\w+:)([^\"]+)\"")
LOADED = re.compile(r"<(?:script|img|iframe|link rel=\"(?:stylesheet|icon|preconnect)\")[^>]*\"(?:https?:)?//")


@functools.cache
def text_of(path: Path) -> str:
    name = path.relative_to(ROOT / "docs").as_posix() if path.is_relative_to(ROOT / "docs") else ""
    return BLOCK.sub("", PAGES[name]() if name in PAGES else path.read_text())


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Each link to a place in the repository: as written, file, anchor."""
    for found in LINK.finditer(text_of(page)):
        written = found[1] or found[2]
        file, _, anchor = written.partition("#")
        yield written, (page.parent / file).resolve() if file else page, anchor


@functools.cache
def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+?)#*$", text_of(page), re.M)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", head).strip().lower() for head in heads]
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in plain}


def test_every_link_leads_somewhere() -> None:
    made = {ROOT / "docs" / name for name in (*PAGES, "asyncapi.json", "monitoring/dashboard.json")}
    for page in WRITTEN:
        for written, file, anchor in links(page):
            assert file in made or file.exists(), f"{page}: {written}"
            assert not anchor or file.suffix != ".md" or anchor in anchors(file), f"{page}: {written}"


def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "HTTPS_PROXY": "http://127.0.0.1:9", "PYTHONWARNINGS": ""}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert pages.keys() >= {"index.html", "concepts/events.html", *(f"{name[:-3]}.html" for name in PAGES)}
    assert [name for name, text in pages.items() if LOADED.search(text)] == []
    assert "RecallClient" in pages["reference/python.html"]
    for path in (ROOT / "docs").glob("*.md"):  # none is swallowed by a block of code
        shown = len(re.findall(r"<h2 ", pages[f"{path.stem}.html"]))
        assert shown == len(re.findall(r"^## ", text_of(path), re.M)), path.name
    assert re.search(r"<h1[^>]*>Command line", pages["reference/cli.html"])
