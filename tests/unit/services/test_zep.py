"""Zep's own client classes over real HTTP before our engine: of its community edition and of its cloud."""

import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from zep_python import Message, NotFoundError
from zep_python.client import Zep
from zep_python.core.api_error import ApiError
from zep_python.errors import BadRequestError

from recallflow.credentials import ApiKeyText
from tests.unit.gateway.serving import config_in, local_gateway
from tests.unit.services.mem0_clients import control_file

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # zep-cloud's own use of pydantic is deprecated
    import zep_cloud
    from zep_cloud.client import Zep as CloudZep

KEY = ApiKeyText.new()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a gateway with a key, and return a tenant's URL."""
    folder = tmp_path_factory.mktemp("gateway")
    with local_gateway(config_in(folder), control_file(folder, (KEY, {}))) as served:
        yield f"{served}/zep/acme"


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30) as opened:
        yield opened


@pytest.fixture(scope="module")
def zep(url: str, http: httpx.Client) -> Zep:
    return Zep(api_key=KEY.text(), base_url=url, httpx_client=http)


@pytest.fixture
def user(zep: Any) -> str:
    user_id = f"ann {uuid.uuid4().hex}"
    zep.user.add(user_id=user_id, email="ann@example.com", first_name="Ann", metadata={"plan": "free"})
    return user_id


@pytest.fixture
def session(zep: Any, user: str) -> str:
    session_id = uuid.uuid4().hex
    zep.memory.add_session(session_id=session_id, user_id=user, metadata={"topic": "home"})
    return session_id


def says(content: str, role: str = "Ann", role_type: str = "user", **more: Any) -> Message:
    return Message(content=content, role=role, role_type=role_type, **more)


def contents(messages: list[Any]) -> list[str]:
    return [message.content for message in messages]


def test_added_messages_return_in_order_with_facts_of_other_sessions(zep: Any, user: str, session: str) -> None:
    earlier = uuid.uuid4().hex
    zep.memory.add_session(session_id=earlier, user_id=user)
    zep.memory.add(earlier, messages=[says("I am allergic to nuts.")])
    chat = [says("What should I cook?", metadata={"n": 1}), says("Any allergies?", "chef", "assistant"), says("Nuts.")]
    assert zep.memory.add(session, messages=chat).message == "OK"
    memory = zep.memory.get(session)
    for got, given in zip(memory.messages, chat, strict=True):
        assert (got.role, got.role_type, got.content) == (given.role, given.role_type, given.content)
    assert memory.messages[0].metadata == {"n": 1}
    assert memory.relevant_facts[0].fact == "Ann: I am allergic to nuts."
    assert memory.context.startswith("- Ann: I am allergic to nuts. (")
    assert contents(zep.memory.get(session, lastn=1).messages) == ["Nuts."]
    assert not zep.memory.get(session, min_rating=1).relevant_facts


def test_messages_are_read_page_by_page_and_one_by_one(zep: Any, session: str) -> None:
    times = [f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3)]
    zep.memory.add(session, messages=[says(f"Day {at[9]}.", created_at=at, uuid=at[:10] + session) for at in times])
    pages = [zep.memory.get_session_messages(session, limit=2, cursor=number) for number in (1, 2, 3)]
    assert [contents(page.messages) for page in pages] == [["Day 1.", "Day 2."], ["Day 3."], []]
    assert [(page.row_count, page.total_count) for page in pages] == [(2, 3), (1, 3), (0, 3)]
    message_id = f"2026-01-02{session}"
    changed = zep.memory.update_message_metadata(session, message_id, metadata={"seen": True})
    assert changed == zep.memory.get_session_message(session, message_id)
    assert (changed.metadata, changed.created_at) == ({"seen": True}, "2026-01-02T00:00:00Z")
    with pytest.raises(NotFoundError):
        zep.memory.get_session_message(session, "none")


def test_session_is_changed_and_deleted_and_may_return(zep: Any, user: str, session: str) -> None:
    with pytest.raises(BadRequestError, match="exists"):
        zep.memory.add_session(session_id=session, user_id=user)
    zep.memory.update_session(session, metadata={"open": True})
    found = zep.memory.get_session(session)
    assert (found.session_id, found.user_id, found.metadata) == (session, user, {"topic": "home", "open": True})
    assert [[one.session_id for one in part] for part in zep.user.get_sessions(user)] == [[session]]
    zep.memory.add(session, messages=[says("Forget this.")])
    zep.memory.delete(session)
    for call in (zep.memory.get, zep.memory.get_session, zep.memory.delete, zep.memory.get_session_messages):
        with pytest.raises(NotFoundError):
            call(session)
    assert not zep.memory.search_sessions(text="Forget this?", user_id=user).results
    zep.memory.add_session(session_id=session, user_id=user)
    assert zep.memory.get(session).messages == []


def test_session_without_a_user_has_its_own_memory(zep: Any) -> None:
    session_id = uuid.uuid4().hex
    zep.memory.add(
        session_id, messages=[says("I live in Porto.", "human", "norole", metadata={"zep": "owner", "owner": "x"})]
    )
    assert zep.memory.get_session(session_id).user_id is None
    [result] = zep.memory.search_sessions(text="Where do I live?", session_ids=[session_id]).results
    assert (result.session_id, result.fact.fact) == (session_id, "human: I live in Porto.")


def test_search_returns_messages_or_facts_of_chosen_sessions(zep: Any, user: str, session: str) -> None:
    zep.memory.add(session, messages=[says("I moved to Porto.", metadata={"n": 1}), says("I like tea.")])
    [best, *_] = zep.memory.search_sessions(text="Where did Ann move?", user_id=user, search_scope="messages").results
    assert (best.message.content, best.message.metadata) == ("I moved to Porto.", {"n": 1})
    [fact] = zep.memory.search_sessions(text="Where did Ann move?", user_id=user, limit=1).results
    assert fact.fact.fact == "Ann: I moved to Porto."
    assert not zep.memory.search_sessions(text="Porto", user_id=user, session_ids=["another"]).results
    assert zep.memory.get_fact(fact.fact.uuid_).fact.fact == fact.fact.fact
    assert zep.memory.delete_fact(fact.fact.uuid_) == "OK"
    for call in (zep.memory.get_fact, zep.memory.delete_fact):
        for fact_id in (fact.fact.uuid_, "none"):
            with pytest.raises(NotFoundError):
                call(fact_id)


def test_user_is_changed_and_erased_with_the_sessions(zep: Any, user: str, session: str) -> None:
    with pytest.raises(BadRequestError, match="exists"):
        zep.user.add(user_id=user)
    changed = zep.user.update(user, last_name="Lee", metadata={"since": 2026})
    assert changed == zep.user.get(user)
    assert (changed.user_id, changed.email, changed.last_name) == (user, "ann@example.com", "Lee")
    assert changed.metadata == {"plan": "free", "since": 2026}
    assert zep.user.delete(user).message == "OK"
    for call, gone in ((zep.user.get, user), (zep.memory.get_session, session)):
        with pytest.raises(NotFoundError):
            call(gone)
    zep.user.add(user_id=user)
    assert zep.user.get_sessions(user) in ([], [[]])


@pytest.mark.parametrize(
    ("call", "status", "says"),
    [
        (lambda zep: zep.memory.list_sessions(), 501, "of Zep is not supported"),
        (lambda zep: zep.user.list_ordered(), 501, "of Zep is not supported"),
        (lambda zep: zep.memory.search_sessions(text="x"), 400, "user_id: is missing"),
        (lambda zep: zep.memory.search_sessions(text="x", user_id="u", search_scope="summary"), 400, "search_scope"),
        (lambda zep: zep.memory.search_sessions(text="x", user_id="u", record_filter={"a": 1}), 400, "record_filter"),
        (lambda zep: zep.memory.search_sessions(text="x", user_id="run:s"), 400, "begins with run:"),
        (lambda zep: zep.memory.add("s", messages=[says("x", "Ann", "boss")]), 400, "role_type: is 'boss'"),
        (lambda zep: zep.memory.add("s" * 121, messages=[says("x")]), 400, "session_id"),
        (lambda zep: zep.user.add(email="x"), 400, "user_id"),
        (lambda zep: zep.user.add(user_id="a/b"), 400, "user_id"),
        (lambda zep: zep.memory.add_session(session_id="a/b"), 400, "session_id"),
    ],
    ids=["sessions", "users", "nobody", "summary", "filter", "run", "role", "long", "no id", "user", "session"],
)
def test_unsupported_call_is_refused_by_name(zep: Any, call: Any, status: int, says: str) -> None:
    with pytest.raises(ApiError) as refused:
        call(zep)
    assert refused.value.status_code == status
    assert says in str(refused.value.body)


def test_wrong_key_is_refused(url: str, http: httpx.Client) -> None:
    with pytest.raises(ApiError) as refused:
        Zep(api_key=ApiKeyText.new().text(), base_url=url, httpx_client=http).user.get("ann")
    assert refused.value.status_code == 401


def test_cloud_client_of_version_2_has_context_and_graph_search(
    url: str, http: httpx.Client, user: str, session: str
) -> None:
    zep: Any = CloudZep(api_key=KEY.text(), base_url=f"{url}/api/v2", httpx_client=http)
    first, second = (
        zep_cloud.Message(content=text, role="Ann", role_type="user") for text in ("I moved to Porto.", "Where?")
    )
    zep.memory.add(session, messages=[first])
    assert "Porto" in zep.memory.add(session, messages=[second], return_context=True).context
    assert [one.session_id for one in zep.user.get_sessions(user)] == [session]
    [episode, *_] = zep.graph.search(user_id=user, query="Where did Ann move?", scope="episodes").episodes
    assert (episode.content, episode.role, episode.session_id) == ("I moved to Porto.", "Ann", session)
    relation = {"source": "Ann", "type": "works_at", "target": "Acme"}
    told = {"type": "memory", "tenant_id": "acme", "user_id": user, "content": "Ann works.", "relations": [relation]}
    server, headers = url.removesuffix("/zep/acme"), {"x-api-key": KEY.text()}
    http.post(f"{server}/memory/events?wait=applied", json=told, headers=headers).raise_for_status()
    [edge] = zep.graph.search(user_id=user, query="Where does Ann work?").edges
    assert (edge.name, edge.fact, edge.source_node_uuid) == ("works_at", "Ann works.", "entity:ann")
