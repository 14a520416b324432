"""The documentation as a site: complete, and without network access."""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.reference import PAGES

pytestmark = pytest.mark.examples
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
