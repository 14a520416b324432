"""Access in the explorer: credentials, refusals and empty accounts."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect
from prometheus_client import CollectorRegistry

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.requests import Limits
from recallflow.credentials import Headers
from recallflow.errors import ErrorCode, FieldProblem, InvalidRecord
from recallflow.events import Event
from recallflow.graphs import Subgraph
from recallflow.queries import QueryEvent
from recallflow.responses import Response
from tests.browser.conftest import fill_in
from tests.unit.gateway.serving import Engine, Everybody, Undecided, served

pytestmark = pytest.mark.needs("chromium")

SECRET = "rfk_0123456789abcdef_secret"


def nothing(_: QueryEvent) -> Response:
    return Response(query_id="q", status="ok", subgraph=Subgraph(nodes=[], edges=[], links=[], memories=[], caps={}))


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.answer = nothing
    return engine


@pytest.fixture
def admission() -> Everybody:
    return Everybody()


@pytest.fixture
def page(engine: Engine, admission: Everybody, browser: Browser) -> Iterator[Page]:
    app = build_app(engine, admission, Undecided(), Limits(), CollectorRegistry())
    with served(app) as url:
        page = browser.new_context().new_page()
        page.goto(f"{url}/explore")
        yield page
        page.context.close()


def give_key(page: Page, *, keep: bool) -> None:
    page.get_by_role("combobox", name="Credentials").select_option("key")
    page.get_by_label("Key or token").fill(SECRET)
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Keep credentials").set_checked(keep)
    fill_in(page, "ann")
    page.locator("html[data-loaded]").wait_for(state="attached")


@pytest.mark.parametrize("keep", [False, True], ids=["in memory", "until the tab is closed"])
def test_a_key_goes_to_the_gateway_alone(page: Page, engine: Engine, keep: bool) -> None:
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))  # it marks what it is given
    give_key(page, keep=keep)
    assert [dict(headers)["x-api-key"] for _, headers in engine.asked] == [SECRET.encode()]
    assert SECRET not in page.url + "".join(one.url for one in asked)
    assert SECRET not in page.content()
    assert page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
    assert (SECRET in page.evaluate("JSON.stringify(sessionStorage)")) is keep


def test_empty_account_shows_how_to_send_memories(page: Page) -> None:
    fill_in(page, "ann")
    expect(page.locator("#graph-empty")).to_contain_text("Nothing is remembered yet")
    expect(page.locator("#graph-empty")).to_contain_text("POST /memory/events")
    expect(page.locator("#graph-empty")).to_contain_text("mistyped")
    expect(page.locator("#graph-empty pre")).to_contain_text('"tenant_id":"acme","user_id":"ann"')
    expect(page.get_by_role("slider", name="As of")).to_be_disabled()
    expect(page.get_by_placeholder("Search nodes and memories")).to_be_disabled()
    expect(page.get_by_role("checkbox")).to_have_count(0)
    expect(page.get_by_role("heading", name="Nodes")).to_be_focused()


@pytest.mark.parametrize(
    ("code", "advice"),
    [("unauthenticated", "Give an API key or a token"), ("forbidden", "are for other tenants, users or projects")],
)
def test_refused_user_sees_what_to_do(page: Page, admission: Everybody, code: ErrorCode, advice: str) -> None:
    def refuse(*_: Event | Headers) -> None:
        raise InvalidRecord(code, [FieldProblem("", "the door is closed")])

    admission.refuse = refuse
    fill_in(page, "ann")
    alert = page.get_by_role("alert")
    expect(alert.get_by_text("the door is closed")).to_have_count(1)
    expect(alert).to_contain_text(advice)
    admission.refuse = lambda *_: None
    alert.get_by_role("button", name="Try again").click()
    expect(alert).to_be_empty()
    expect(page.locator("#graph-empty")).to_be_visible()


def test_waiting_is_shown(page: Page, engine: Engine) -> None:
    engine.release.clear()
    fill_in(page, "ann")
    expect(page.locator("#said")).to_contain_text("Still waiting for the engine")
    engine.release.set()
    expect(page.locator("#said")).to_contain_text("are loaded.")


def test_damaged_session_storage_is_ignored(page: Page) -> None:
    for entry in ("{", "null", '"x"', '{"tenant": 5, "user": []}'):
        page.evaluate("entry => sessionStorage.setItem('recallflow.explorer', entry)", entry)
        page.reload()
        fill_in(page, "ann")
        expect(page.locator("#graph-empty")).to_be_visible()
