"""The explorer in a real browser, before a real gateway: graphs, questions and episodes."""

import re
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.owner import QUOTE, SCRIPT

pytestmark = pytest.mark.needs("chromium")

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}


def choose(page: Page, name: str) -> None:
    page.get_by_placeholder("Search nodes and memories").fill(name)
    expect(page.locator("#outline-title")).to_contain_text("Found")
    page.locator("#outline button").filter(has_text=name).first.click()


def listed(page: Page) -> list[str]:
    return page.locator("#outline button .text").all_inner_texts()


def test_an_edge_says_its_direction_weight_confidence_evidence_and_expiry(explorer: Callable[..., Page]) -> None:
    page = explorer()
    details = page.locator("#details")
    choose(page, "I went to Doctor Lee")
    details.get_by_role("button", name="caused by →").click()
    expect(details.get_by_role("heading", name="caused by")).to_be_visible()
    expect(details.locator(".ends button")).to_contain_text(["I went to Doctor Lee", "Doctor Lee says to swim"])
    facts = details.locator(".facts")
    expect(facts).to_contain_text("Directionfrom the first to the second")
    expect(facts).to_contain_text("Weight0.70")
    expect(facts).to_contain_text("Confidence0.90")
    expect(facts).to_contain_text("Expiresnever")
    expect(facts).to_contain_text(f"Given as evidence{QUOTE}")
    expect(details.locator("figure mark")).to_have_text([QUOTE])
    details.locator(".ends button").last.click()
    details.get_by_role("button", name="depends on →").click()
    expect(facts).to_contain_text("ExpiresJun 19, 2028")


def test_the_evidence_is_marked_in_the_memories_that_state_it(explorer: Callable[..., Page]) -> None:
    page = explorer()
    choose(page, "Harbour Pool")
    expect(page.locator("#details mark")).to_have_text(["Harbour Pool"])
    page.get_by_role("button", name="recommends ←").click()
    figure = page.locator("#details figure")
    expect(figure.locator(".text")).to_have_text("Ann swims at Harbour Pool on Tuesdays")
    expect(figure.locator("mark")).to_have_text(["Ann swims at Harbour Pool on Tuesdays"])
    figure.get_by_role("button", name="Open memory").click()
    expect(page.locator("#details blockquote")).to_have_text("Ann swims at Harbour Pool on Tuesdays")


def test_a_stored_script_stays_text(explorer: Callable[..., Page]) -> None:
    page = explorer()
    choose(page, "window.hit")
    text = page.locator("#details blockquote .text")
    expect(text).to_have_text(SCRIPT)
    assert text.evaluate("element => getComputedStyle(element).unicodeBidi") == "isolate"  # its override ends with it
    page.get_by_role("tab", name="Question").click()
    page.get_by_placeholder("Ask these memories something").fill("window hit here")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#view-question .card blockquote").filter(has_text="window.hit")).to_have_text(SCRIPT)
    page.get_by_role("tab", name="Episodes").click()
    expect(page.locator("#view-episodes .card").filter(has_text="onerror")).not_to_have_count(0)
    assert page.evaluate("window.hit") is None
    assert page.locator("main script, main img, main a").count() == 0


def test_search_and_filters(explorer: Callable[..., Page]) -> None:
    page = explorer()
    everything = listed(page)
    page.get_by_role("checkbox", name="entity").uncheck()
    assert "Harbour Pool" in everything
    assert "Harbour Pool" not in listed(page)
    page.get_by_role("checkbox", name="entity").check()
    page.get_by_role("checkbox", name="caused by").uncheck()
    choose(page, "I went to Doctor Lee")
    page.get_by_text("Project, time, marks").click()
    page.get_by_role("checkbox", name="superseded").uncheck()
    assert listed(page) == []
    page.get_by_role("button", name="Clear filters").click()
    assert listed(page) == everything
    page.get_by_text("Project, time, marks").click()
    page.get_by_role("combobox", name="Project").select_option("knee")
    assert [one for one in listed(page) if one in MEMORIES] == ["Ann swims at Harbour Pool on Tuesdays"]
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_text("Project, time, marks").click()
    page.get_by_label("Memories from").fill("2026-01-03")
    page.get_by_label("up to").fill("2026-01-03")
    assert [one for one in listed(page) if one in MEMORIES] == ["Ann's knee is fine again"]


MEMORIES = {"Ann swims at Harbour Pool on Tuesdays", "Ann's knee is fine again", "Ann prefers tea"}


def test_the_state_of_then(explorer: Callable[..., Page]) -> None:
    page = explorer()
    slider = page.get_by_role("slider", name="As of")
    expect(slider).to_have_attribute("aria-valuetext", "now")
    slider.press("Home")
    expect(page.locator("#outline")).not_to_contain_text("Ann's knee is fine again")
    expect(page.locator("#outline")).to_contain_text("I went to Doctor Lee")
    choose(page, "I went to Doctor Lee")
    expect(page.locator("#details .mark")).to_have_count(0)  # superseded later
    expect(slider).to_have_attribute("aria-valuetext", re.compile("Jan 1, 2026"))
    page.get_by_role("tab", name="Question").click()
    page.get_by_placeholder("Ask these memories something").fill("knee")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#view-question .card blockquote").first).to_contain_text(QUOTE)
    page.get_by_role("button", name="Now", exact=True).click()
    expect(page.locator("#view-question .card blockquote").first).to_contain_text("Ann's knee is fine again")


def test_how_a_question_was_answered(explorer: Callable[..., Page]) -> None:
    page = explorer()
    page.get_by_role("tab", name="Question").click()
    page.get_by_placeholder("Ask these memories something").fill("Who says to swim after long runs?")
    page.get_by_label("Hops").select_option("2")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#view-question .summary")).to_contain_text(
        re.compile(r"an answer is (very )?likely among these", re.I)
    )
    first = page.locator("#view-question .card").first
    expect(first).to_contain_text("Why it is included")
    expect(first.locator("mark").first).to_have_text("says")
    first.get_by_text("How the score came about").click()
    expect(first.locator("tbody th")).to_contain_text(["semantic", "recency"])
    trace = page.get_by_role("region", name="What the graph looked at")
    expect(trace.get_by_role("columnheader")).to_contain_text(["From", "Relation", "To", "What came of it"])
    expect(trace).to_contain_text("caused by")
    expect(trace).to_contain_text("Not in the answer: the tenant's rollout is off")
    trace.get_by_role("button", name="Show the paths in the graph").click()
    expect(page.get_by_role("tab", name="Graph")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#outline-title")).to_contain_text("Found")


def test_episodes_on_a_timeline(explorer: Callable[..., Page]) -> None:
    page = explorer()
    page.get_by_role("tab", name="Episodes").click()
    bars = page.locator(".timeline rect")
    cards = page.locator("#view-episodes .card")
    expect(cards).to_have_count(6)
    expect(bars).to_have_count(6)
    bars.first.click()
    expect(cards.last).to_have_class("card chosen")
    cards.filter(has_text="concert 1").get_by_role("button", name="Show in graph").click()
    expect(page.locator("#details")).to_contain_text("Tickets for concert 1 are bought")


def test_memories_appear_only_under_their_owner(explorer: Callable[..., Page]) -> None:
    page = explorer()
    choose(page, "I went to Doctor Lee")
    page.get_by_role("tab", name="Episodes").click()
    expect(page.locator("#view-episodes .card")).to_have_count(6)
    error = {"code": "forbidden", "message": "the door is closed", "fields": []}
    page.route("**/memory/query", lambda route: route.fulfill(json={"error": error}))
    page.locator("#who").click()
    page.get_by_label("User", exact=True).fill("bob")
    page.get_by_role("button", name="Show memories").click()
    expect(page.get_by_role("alert")).to_contain_text("the door is closed")
    expect(page.locator("#view-episodes .card")).to_have_count(0)
    page.get_by_role("tab", name="Graph").click()
    expect(page.locator("#outline li")).to_have_count(0)
    expect(page.locator("#details")).to_contain_text("Nothing selected")


def test_a_keyboard_is_enough(explorer: Callable[..., Page]) -> None:
    page = explorer()
    page.get_by_role("tab", name="Graph").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Question")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    page.get_by_placeholder("Search nodes and memories").focus()
    page.keyboard.type("caused")
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.locator("#outline button").first.focus()
    page.keyboard.press("ArrowDown")
    second = page.locator("#outline button").nth(1)
    expect(second).to_be_focused()
    page.keyboard.press("Enter")
    expect(second).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#said")).to_contain_text("Selected")
    canvas = page.locator("#canvas")
    canvas.focus()
    before = canvas.screenshot()
    for key in ("+", "+", "ArrowLeft"):
        page.keyboard.press(key)
    assert any(canvas.screenshot() != before for _ in range(50))  # a worker draws
    expect(canvas).to_be_focused()


def test_five_thousand_nodes(explorer: Callable[..., Page]) -> None:
    page = explorer("crowd")
    loaded = int(page.locator("html").get_attribute("data-loaded") or 0)
    assert loaded >= 5_000
    expect(page.locator("#count")).to_have_text(re.compile("^60 of 5,"))
    choose(page, "Harbour Clinic")
    expect(page.locator("#details h2")).to_have_text("Harbour Clinic")
    expect(page.locator("#count")).to_have_text(re.compile("^100 of 5,"))  # with its 40 newest memories
    page.locator("#details .rows button").first.click()
    expect(page.locator("#details h2")).not_to_have_text("Harbour Clinic")
    page.locator("#histogram g").nth(3).click()
    expect(page.locator("#outline-title")).not_to_contain_text("Nodes (5,")
    page.get_by_role("button", name="Overview").click()
    expect(page.locator("#count")).not_to_have_text(re.compile("^(60|100) of"))


def test_replaced_statements_are_on_a_line_of_time(explorer: Callable[..., Page]) -> None:
    page = explorer("mover")
    page.get_by_role("tab", name="Question").click()
    page.get_by_placeholder("Ask these memories something").fill("Where do I live?")
    page.get_by_role("button", name="Ask", exact=True).click()
    rows = page.locator(".changes li")
    expect(rows).to_contain_text([re.compile("Porto.*replaced Jan 3, 2026"), re.compile("Lisbon.*current")])


@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESKTOP), ("dark", PHONE)], ids=["desktop", "phone"])
def test_views_pass_accessibility_checks(explorer: Callable[..., Page], scheme: str, viewport: dict[str, int]) -> None:
    page = explorer(color_scheme=scheme, viewport=viewport, reduced_motion="reduce")
    choose(page, "I went to Doctor Lee")
    page.get_by_role("button", name="caused by →").click()
    expect(page.locator("#details h3")).to_have_text("Evidence")
    assert violations(page) == []
    page.get_by_role("tab", name="Question").click()
    page.get_by_placeholder("Ask these memories something").fill("Who says to swim?")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.get_by_text("How the score came about").first.click()
    assert violations(page) == []
    page.get_by_role("tab", name="Episodes").click()
    expect(page.locator(".timeline rect")).not_to_have_count(0)
    assert violations(page) == []
    page.locator("#who").click()
    expect(page.get_by_label("Tenant")).to_be_visible()
    assert violations(page) == []


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    wide = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
    wide += " && !e.closest('.wide, .timeline, .stage, .hidden')).map(e => e.outerHTML.slice(0, 80))"
    broken = [f"{one['id']}: {node['html']}" for one in found for node in one["nodes"]]
    return [*broken, *page.evaluate(wide)]
