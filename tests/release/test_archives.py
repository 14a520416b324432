"""What PyPI's page says: links and pictures that lead to the repository, and the changelog's version."""

import re
from pathlib import Path

import recallflow
from tests.release.conftest import ROOT
from tools.release import absolute

WHERE = "https://example.org/acme/recallflow"


def test_relative_readme_links_lead_to_the_repository() -> None:
    page = (
        "![demo](docs/images/demo.svg) [events](docs/events.md#queries) [above](#figures) [bytewax](https://bytewax.io)\n"
        '<img src="docs/images/a.png"> <a href="docs/">all</a> [`--reranker`](docs/operations.md#a-reranker)'
    )
    assert absolute(page, WHERE, "v1.2.0") == (
        f"![demo]({WHERE}/raw/v1.2.0/docs/images/demo.svg) [events]({WHERE}/blob/v1.2.0/docs/events.md#queries) "
        f"[above](#figures) [bytewax](https://bytewax.io)\n"
        f'<img src="{WHERE}/raw/v1.2.0/docs/images/a.png"> <a href="{WHERE}/blob/v1.2.0/docs/">all</a> '
        f"[`--reranker`]({WHERE}/blob/v1.2.0/docs/operations.md#a-reranker)"
    )


def test_the_readmes_links_lead_to_files_that_there_are() -> None:
    page = absolute((ROOT / "README.md").read_text(), WHERE, "v1")
    paths = re.findall(rf"{re.escape(WHERE)}/(?:raw|blob)/v1/([^)\s#\"]+)", page)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert re.findall(r"\]\((?!#|https?://)[^)]+\)", page) == []


def test_the_changelog_begins_with_this_version() -> None:
    newest = re.findall(r"^## (\S+)", Path(ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == recallflow.__version__
