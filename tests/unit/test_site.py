"""The documentation as a site: it is built from what is there, complete, and shows everything without a network."""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recallflow.cli.commands import commands
from recallflow.flows.config import KEYS
from tools.reference import PAGES

ROOT = Path(__file__).parents[2]
WRITTEN = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
WRITTEN = [path for path in WRITTEN if "node_modules" not in path.parts]
BLOCK = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
LINK = re.compile(r"\]\(<?(?!\w+:)([^)\s>]*)>?\)|(?:src|srcset|href)=\"(?!\w+:)([^\"]+)\"")
LOADED = re.compile(r"<(?:script|img|iframe|link rel=\"(?:stylesheet|icon|preconnect)\")[^>]*\"(?:https?:)?//")


def text_of(path: Path) -> str:
    """A page without its blocks of code; of one that is made, what is made now."""
    name = path.relative_to(ROOT / "docs").as_posix() if path.is_relative_to(ROOT / "docs") else ""
    return BLOCK.sub("", PAGES[name]() if name in PAGES else path.read_text())


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Each link to a place in the repository: as written, file, anchor."""
    for found in LINK.finditer(text_of(page)):
        written = found[1] or found[2]
        file, _, anchor = written.partition("#")
        yield written, (page.parent / file).resolve() if file else page, anchor


def anchors(page: Path) -> set[str]:
    """As GitHub and the site make them of headings; one that comes again has a number."""
    heads = re.findall(r"^#+ (.+?)#*$", text_of(page), re.M)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", head).strip().lower() for head in heads]
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in plain}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    made = {ROOT / "docs" / name for name in PAGES}
    found = [*links(page)]
    assert [written for written, file, _ in found if file not in made and not file.exists()] == []
    anchored = [(written, file, anchor) for written, file, anchor in found if anchor and file.suffix == ".md"]
    assert [written for written, file, anchor in anchored if anchor not in anchors(file)] == []


def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "HTTPS_PROXY": "http://127.0.0.1:9", "PYTHONWARNINGS": ""}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert pages.keys() >= {"index.html", "events.html", *(f"{name[:-3]}.html" for name in PAGES)}
    assert [name for name, text in pages.items() if LOADED.search(text)] == []
    assert "RecallClient" in pages["reference/python.html"]
    for path in (ROOT / "docs").glob("*.md"):  # none is swallowed by a block of code
        shown = len(re.findall(r"<h2 ", pages[f"{path.stem}.html"]))
        assert shown == len(re.findall(r"^## ", text_of(path), re.M)), path.name
    assert re.search(r"<h1[^>]*>Command line", pages["reference/cli.html"])


# ── the reference has all there is ────────────────────────────────────────────────────────────────────────────────


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command
                yield from parsers(command)


def test_the_reference_has_every_command_and_every_option() -> None:
    page = PAGES["reference/cli.md"]()
    for parser in parsers(commands()):
        _, _, after = page.partition(f"# {parser.prog}\n")
        section = re.split(r"^##", after, maxsplit=1, flags=re.M)[0]
        shown = [one for one in parser._actions if one.help != argparse.SUPPRESS and one.dest != "help"]
        assert [name for one in shown for name in one.option_strings if f"`{name}`" not in section] == [], parser.prog


def test_the_reference_has_every_setting_with_its_default() -> None:
    page = PAGES["reference/settings.md"]()
    assert [key for key in KEYS if f"`RECALLFLOW_{key.upper().replace('.', '_')}`" not in page] == []
    assert re.search(r"^\| `partitions`: .*\| `16` \| `--partitions` \|", page, re.M)


def test_the_reference_has_every_metric_that_the_page_on_probes_explains() -> None:
    named = re.compile(r"^\| `(recallflow_\w+)` \| (\w+) \|([^|]*)\|", re.M)
    pages = [(ROOT / "docs" / name).read_text() for name in ("operations.md", "monitoring.md")]
    explained = {
        (name, kind, *re.findall(r"`\w+`", labels)) for page in pages for name, kind, labels in named.findall(page)
    }
    made = named.findall(PAGES["reference/metrics.md"]())
    assert {(name, kind, *re.findall(r"`\w+`", labels)) for name, kind, labels in made} == explained


def test_the_reference_has_every_code() -> None:
    page = PAGES["reference/errors.md"]()
    assert re.search(r"^\| `id_conflict` \| the memory id was used before", page, re.M)
    assert re.search(r"^\| `stale_read` \| yes \| ", page, re.M)
    assert re.search(r"^\| `left_alone` \| the service failed", page, re.M)
    assert re.search(r"^ +- `DiskFull`: ", page, re.M)
    assert not re.search(r"^\| `\w+` \|  \|$", page.partition("## Why")[0], re.M)
