"""The start page, the API reference, and changes to memories in the explorer, before a real engine."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.unit.gateway.serving import config_in, local_gateway

pytestmark = pytest.mark.needs("chromium")

ANN = {"tenant_id": "acme", "user_id": "ann"}
TEXT = "Ann is allergic to peanuts"


@pytest.fixture
def engine_url(tmp_path: Path) -> Iterator[str]:
    with local_gateway(config_in(tmp_path)) as url:
        httpx.post(f"{url}/memory/events", json={"type": "memory", **ANN, "id": "m-1", "content": TEXT}, timeout=30)
        yield url


@pytest.fixture
def page(engine_url: str, open_page: Callable[..., Page]) -> Page:
    page = open_page()
    page.goto(engine_url)
    return page


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html']}" for one in found for node in one["nodes"]]


def open_explorer(page: Page) -> None:
    page.get_by_role("link", name="Explorer").click()
    page.locator("html[data-loaded]").wait_for(state="attached")


def test_start_page_leads_to_a_reference_of_every_route(page: Page, engine_url: str) -> None:
    assert violations(page) == []
    page.get_by_role("link", name="API reference").click()
    page.locator("html[data-loaded=reference]").wait_for(state="attached")
    paths = httpx.get(f"{engine_url}/openapi.json", timeout=30).json()["paths"]
    operations = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    shown = page.locator("#operations summary").all_inner_texts()
    assert [any(one.startswith(name) for one in shown) for name in operations] == [True] * len(operations)
    page.locator("#operations summary").filter(has_text="POST /memory/events Store an event").click()
    expect(page.locator("#operations pre").filter(has_text='"type":"message"').first).to_be_visible()
    assert violations(page) == []


def test_single_owner_is_selected_and_others_can_be_chosen(page: Page, engine_url: str) -> None:
    open_explorer(page)
    expect(page.locator("#who")).to_have_text("acme / ann")
    httpx.post(
        f"{engine_url}/memory/events", json={"type": "memory", **ANN, "user_id": "bo", "content": "x"}, timeout=30
    )
    page.locator("#who").click()
    expect(page.locator("#users option")).to_have_count(2)
    assert page.locator("#users option").evaluate_all("all => all.map(one => one.value)") == ["ann", "bo"]


def test_memories_are_added_corrected_forgotten_and_the_user_erased(page: Page, engine_url: str) -> None:
    def contents() -> list[str]:
        found = httpx.get(f"{engine_url}/memories", params=ANN, timeout=30).json()
        return [one["content"] for one in found["memory_page"]["memories"]]

    open_explorer(page)
    change = page.locator("#change")
    page.get_by_role("button", name="Remember…").click()
    assert violations(page) == []
    change.get_by_label("What to remember").fill("Ann skis in Tromsø")
    change.get_by_role("button", name="Remember").click()
    expect(page.locator("#outline")).to_contain_text("Ann skis in Tromsø")
    page.locator("#outline button").filter(has_text="Ann skis").first.click()
    page.get_by_role("button", name="Correct…").click()
    change.get_by_label("What to remember").fill("Ann skis in Oslo")
    change.get_by_role("button", name="Correct").click()
    expect(page.locator("#outline")).to_contain_text("Ann skis in Oslo")
    assert contents() == ["Ann skis in Oslo", TEXT]
    page.locator("#outline button").filter(has_text="Ann skis").first.click()
    page.get_by_role("button", name="Forget…").click()
    change.get_by_role("button", name="Forget").click()
    expect(page.locator("#outline")).not_to_contain_text("Ann skis")
    assert contents() == [TEXT]
    page.locator("#who").click()
    page.get_by_role("button", name="Erase this user…").click()
    change.get_by_label("User to erase").fill("bo")
    change.get_by_role("button", name="Erase").click()
    assert contents() == [TEXT]  # another name confirms nothing
    change.get_by_label("User to erase").fill("ann")
    change.get_by_role("button", name="Erase").click()
    expect(page.locator("#graph-empty")).to_be_visible()
    assert contents() == []
