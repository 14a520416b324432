"""The documentation as a site that is opened from its folder, without a server."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.needs("chromium")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["index.html", "how-to/runbook.html"])
def test_the_site_can_be_searched_from_its_folder(tmp_path: Path, open_page: Callable[..., Page], name: str) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": ""}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = open_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto((tmp_path / name).as_uri())
    page.get_by_role("textbox", name="Search").click()
    page.get_by_role("textbox", name="Search").press_sequentially("nothing_relevant")
    expect(page.locator(".md-search-result__link").first).to_be_visible()
    assert [url for url in requested if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
