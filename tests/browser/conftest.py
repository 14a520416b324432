"""A gateway over a person's memories, and a browser that shows them."""

import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from tests.browser.large_graph import large_graph
from tests.browser.owner import close_up, moves
from tests.starts import COMMAND, Starts

NODES = 5_000
_ADDRESS = re.compile(rb"serving at (\S+)")


@pytest.fixture(scope="session")
def gateway(starts: Starts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a state directory that real events made, and return the address."""
    state_dir = tmp_path_factory.mktemp("explorer") / "state"
    events = (*close_up(), *moves(), *large_graph(NODES))
    process(map(orjson.dumps, events), Settings(partitions=1), state_dir)
    serving = starts.start(COMMAND, ["serve", "--state-dir", str(state_dir), "--partitions", "1", "--port", "0"])
    yield address_of(serving)
    serving.kill()
    serving.communicate()


def address_of(serving: subprocess.Popen[bytes]) -> str:
    said: list[bytes] = []
    assert serving.stderr is not None
    for line in serving.stderr:
        said.append(line)
        if found := _ADDRESS.search(line):
            return found[1].decode()
    raise AssertionError(b"".join(said).decode())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium without a window. Containers have no namespaces for its sandbox.

    Not of the session: while Playwright's event loop runs in this thread, `asyncio.run` fails in other tests."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages in separate contexts. At teardown no page may have reported an error or a policy violation."""
    complaints: list[str] = []
    contexts: list[BrowserContext] = []

    def begin(**options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, "timezone_id": "UTC"} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield begin
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def explorer(gateway: str, open_page: Callable[..., Page]) -> Callable[..., Page]:

    def show(user: str = "ann", **options: Any) -> Page:
        page = open_page(**options)
        page.goto(f"{gateway}/explore")
        fill_in(page, user)
        page.locator("html[data-loaded]").wait_for(state="attached")
        return page

    return show


def fill_in(page: Page, user: str) -> None:
    page.get_by_label("Tenant").fill("acme")
    page.get_by_label("User").fill(user)
    page.get_by_role("button", name="Show memories").click()
