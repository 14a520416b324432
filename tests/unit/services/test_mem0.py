"""mem0's own client classes over real HTTP before our engine."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.http import mem0_requests as requests
from recallflow.connectors.http.mem0_requests import ENTITIES, mem0_id, our_id, parse_filters
from recallflow.credentials import ApiKeyText
from recallflow.errors import InvalidRecord
from recallflow.queries import Recall
from tests.unit.gateway.serving import config_in, local_gateway
from tests.unit.services.mem0_clients import control_file, import_mem0

KEY, ANNS_KEY = ApiKeyText.new(), ApiKeyText.new()
U = {"user_id": "u"}
CHAT = [
    {"role": "user", "content": "I am Alex, and I am allergic to nuts."},
    {"role": "assistant", "content": "Noted: no nuts."},
]


@pytest.fixture(scope="module")
def mem0(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return import_mem0(tmp_path_factory.mktemp("mem0"))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a gateway with a key for any user and one for Ann, and return a tenant's URL."""
    folder = tmp_path_factory.mktemp("gateway")
    decided = control_file(folder, (KEY, {}), (ANNS_KEY, {"end_users": ["ann"]}))
    with local_gateway(config_in(folder), decided) as url:
        yield f"{url}/mem0/acme"


@pytest.fixture
def client(mem0: ModuleType, host: str) -> Iterator[Any]:
    opened = mem0.MemoryClient(api_key=KEY.text(), host=host)
    yield opened
    opened.client.close()


@pytest.fixture
def user() -> str:
    return f"alex {uuid.uuid4().hex}: ä/b%2F"


def test_added_memory_is_found_at_once_with_its_fields(client: Any, user: str) -> None:
    added = client.add(CHAT, user_id=user, agent_id="chef", run_id="r1", app_id="kitchen", metadata={"shelf": 3})
    assert [(one["memory"], one["event"]) for one in added["results"]] == [(m["content"], "ADD") for m in CHAT]
    best = client.search("What is Alex allergic to?", filters={"user_id": user})["results"][0]
    told = {"user_id": user, "agent_id": "chef", "run_id": "r1", "app_id": "kitchen", "metadata": {"shelf": 3}}
    assert {name: best[name] for name in told} == told
    assert (best["id"], best["memory"]) == (added["results"][0]["id"], CHAT[0]["content"])
    assert 0.5 < best["score"] <= 1
    assert client.get(best["id"]) == {name: value for name, value in best.items() if name != "score"}


def test_updated_memory_has_a_history(client: Any, user: str) -> None:
    [one] = client.add("Alex eats no nuts.", user_id=user, agent_id="chef", metadata={"a": 1})["results"]
    changed = client.update(one["id"], text="Alex eats nuts again.", metadata={"b": 2}, expiration_date="2999-12-31")
    assert (changed["memory"], changed["metadata"]) == ("Alex eats nuts again.", {"b": 2})
    assert (changed["agent_id"], changed["expiration_date"]) == ("chef", "2999-12-31")
    assert "expiration_date" not in client.update(one["id"], expiration_date=None)
    first, second, third = client.history(one["id"])
    assert (first["event"], first["old_memory"], first["new_memory"]) == ("ADD", None, "Alex eats no nuts.")
    assert (second["event"], second["old_memory"]) == ("UPDATE", "Alex eats no nuts.")
    assert second["new_memory"] == third["new_memory"] == "Alex eats nuts again."


def test_deleted_memory_is_not_found(client: Any, mem0: ModuleType, user: str) -> None:
    kept, gone = (client.add(text, user_id=user)["results"][0] for text in ("Alex skis.", "Alex swims."))
    client.delete(gone["id"])
    for again in (client.get, client.delete, client.history):
        with pytest.raises(mem0.exceptions.MemoryNotFoundError):
            again(gone["id"])
    assert [one["id"] for one in client.get_all(filters={"user_id": user})["results"]] == [kept["id"]]


def test_delete_all_removes_one_user_or_run_only(client: Any, user: str) -> None:
    other = f"{user}2"
    for whose, run in ((user, "r1"), (user, "r2"), (other, "r1")):
        client.add(f"Said in {run}.", user_id=whose, run_id=run)
    client.delete_all(user_id=user, run_id="r1")
    assert texts(client.get_all(filters={"user_id": user})) == ["Said in r2."]
    client.delete_all(user_id=user)
    assert texts(client.get_all(filters={"user_id": user})) == []
    assert texts(client.get_all(filters={"user_id": other})) == ["Said in r1."]


def test_all_memories_are_read_page_by_page(client: Any, user: str) -> None:
    for number in range(5):
        client.add(f"Memory {number}.", user_id=user, timestamp=1_700_000_000 + number)
    pages = [client.get_all(filters={"user_id": user}, page=number, page_size=2) for number in (1, 2, 3, 4)]
    assert [texts(page) for page in pages] == [
        ["Memory 4.", "Memory 3."], ["Memory 2.", "Memory 1."], ["Memory 0."], [],
    ]  # fmt: skip
    assert {page["count"] for page in pages} == {5}
    assert [page["next"] is None for page in pages] == [False, False, True, True]
    assert [page["previous"] is None for page in pages] == [True, False, False, False]


def test_expired_memories_are_hidden(client: Any, user: str) -> None:
    client.add("The tickets are on sale.", user_id=user, expiration_date="2020-01-31")
    client.add("The tickets are sold out.", user_id=user, expiration_date="2999-01-31")
    assert texts(client.get_all(filters={"user_id": user})) == ["The tickets are sold out."]
    assert texts(client.search("tickets", filters={"user_id": user})) == ["The tickets are sold out."]


def test_agent_app_or_run_alone_has_its_own_memories(client: Any, user: str) -> None:
    for entity in ENTITIES:
        client.add(f"Of {entity}.", **{entity: user})
    for entity in ENTITIES:
        [found] = client.get_all(filters={entity: user})["results"]
        assert (found["memory"], found[entity]) == (f"Of {entity}.", user)


@pytest.mark.parametrize("entity", ["agent", "app", "run"])
def test_user_id_cannot_pose_as_an_agent_app_or_run(client: Any, mem0: ModuleType, user: str, entity: str) -> None:
    [kept] = client.add("Of its own.", **{f"{entity}_id": user})["results"]
    passing = f"{entity}:{user}"
    calls: list[Callable[[], Any]] = [
        lambda: client.add("Not of its own.", user_id=passing),
        lambda: client.add("Not of its own.", filters={"AND": [{"user_id": {"in": [passing]}}]}),
        lambda: client.search("own", filters={"user_id": passing}),
        lambda: client.search("own", filters={"AND": [{"user_id": {"eq": passing}}]}),
        lambda: client.get_all(filters={"user_id": passing, "run_id": "r"}),
        lambda: client.delete_all(user_id=passing),
        lambda: client.delete_all(user_id=passing, run_id="r"),
    ]
    for call in calls:
        with pytest.raises(mem0.exceptions.ValidationError, match=f"user_id: begins with {entity}:"):
            call()
    assert [client.get(kept["id"])["memory"]] == texts(client.get_all(filters={f"{entity}_id": user}))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"run_id": "r1"}, {"a", "b"}), ({"run_id": {"in": ["r1", "r2"]}}, {"a", "b", "c"}),
        ({"agent_id": "chef"}, {"a", "c"}), ({"agent_id": {"ne": "chef"}}, {"b", "d"}), ({"metadata": {"n": 1}}, {"a"}),
        ({"OR": [{"metadata": {"n": 1}}, {"run_id": "r2"}]}, {"a", "c"}),
        ({"NOT": [{"metadata": {"n": {"in": [1, 2]}}}]}, {"c", "d"}),
        ({"AND": [{"run_id": "r1"}, {"NOT": {"agent_id": "chef"}}]}, {"b"}),
        ({"created_at": {"gte": "2026-01-02", "lt": "2026-01-03"}}, {"b"}),
        ({"created_at": {"gt": "2026-01-02T00:00:00Z", "lte": "2026-01-04T00:00:00Z"}}, {"c", "d"}),
    ],
    ids=["run", "runs", "agent", "not agent", "metadata", "or", "not", "and", "day", "after"],
)  # fmt: skip
def test_filters_have_mem0_semantics(client: Any, told: str, filters: dict[str, Any], expected: set[str]) -> None:
    for root in ({"user_id": told} | filters, {"AND": [{"user_id": told}, filters]}):
        assert set(texts(client.get_all(filters=root))) == expected
        assert set(texts(client.search("a b c d", filters=root))) == expected


@pytest.fixture(scope="module")
def told(mem0: ModuleType, host: str) -> Iterator[str]:
    """A user with four memories, of four days."""
    opened, user = mem0.MemoryClient(api_key=KEY.text(), host=host), uuid.uuid4().hex
    days = (("a", "r1", "chef", 1), ("b", "r1", "host", 2), ("c", "r2", "chef", 3), ("d", "r3", "host", 4))
    for text, run, agent, day in days:
        at_s = 1_767_225_600 + (day - 1) * 86_400  # from 1 January 2026 on
        opened.add(text, user_id=user, run_id=run, agent_id=agent, metadata={"n": day}, timestamp=at_s)
    yield user
    opened.client.close()


def test_threshold_drops_low_scores_and_fields_are_selected(client: Any, told: str) -> None:
    every = client.search("a", filters={"user_id": told}, top_k=4)["results"]
    least = every[0]["score"]
    above = client.search("a", filters={"user_id": told}, threshold=least, fields=["memory", "score"])["results"]
    assert above == [{"memory": one["memory"], "score": one["score"]} for one in every if one["score"] >= least]
    assert len(above) < len(every)


@pytest.mark.parametrize(
    ("method", "arguments", "says"),
    [
        ("search", {"filters": U | {"keywords": {"contains": "y"}}}, "filters.keywords: is not supported"),
        ("search", {"filters": {"OR": [U, {"user_id": "v"}]}}, "user_id: is missing"),
        ("search", {"filters": U | {"run_id": "*"}}, "filters.run_id: cannot be any"),
        ("search", {"filters": U | {"metadata": {"n": {"gt": 1}}}}, "filters.metadata.n.gt: is not supported"),
        ("search", {"filters": U | {"run_id": {}}}, "filters.run_id: names no value"),
        ("search", {"filters": U | {"OR": [{"run_id": "r"}, {}]}}, "filters.OR: is no list of conditions"),
        ("search", {"filters": U, "reference_date": "2026-01-01"}, "reference_date: is not supported"),
        ("search", {"filters": U, "latest_only": False}, "latest_only: Input should be True"),
        ("search", {}, "user_id: is missing"),
        ("get_all", {"filters": {"user_id": "u"}, "page": 10_000, "page_size": 100}, "page: ends"),
        ("add", {"messages": "x", "user_id": "u", "custom_instructions": "y"}, "custom_instructions: is not supported"),
        ("add", {"messages": [{"role": "nobody", "content": ""}], "user_id": "u"}, "role: "),
        ("add", {"messages": "x", "user_id": "u", "filters": {"user_id": "v"}}, "filters.user_id: is given twice"),
        ("add", {"messages": "x", "user_id": "u", "expiration_date": "soon"}, "expiration_date: is no date"),
        ("update", {"memory_id": "u:m", "timestamp": 5}, "timestamp: is not supported"),
        ("delete", {"memory_id": "u:m", "delete_linked": True}, "delete_linked: is not supported"),
        ("delete_all", {"user_id": "u", "agent_id": "a"}, "agent_id: is not supported"),
        ("delete_all", {}, "user_id: is missing"),
    ],
    ids=["keywords", "two users", "any run", "greater", "no value", "no condition", "date", "superseded", "nobody",
         "deep", "instructions", "message", "twice", "expiry", "timestamp", "linked", "of an agent", "of nobody"],
)  # fmt: skip
def test_unsupported_argument_is_refused_by_name(
    client: Any, mem0: ModuleType, method: str, arguments: dict[str, Any], says: str
) -> None:
    given = {"query": "x"} | arguments if method == "search" else arguments
    with pytest.raises(mem0.exceptions.ValidationError) as refused:
        getattr(client, method)(**given)
    assert says in str(refused.value)


def test_other_parts_of_mem0_are_said_not_to_be_there(client: Any, mem0: ModuleType) -> None:
    for call in (client.users, lambda: client.delete_users(user_id="u"), lambda: client.batch_delete([]),
                 client.get_profile_settings, lambda: client.project.get()):  # fmt: skip
        with pytest.raises(mem0.exceptions.MemoryError, match="of mem0 is not supported") as refused:
            call()
        assert refused.value.error_code == "HTTP_501"


def test_a_key_that_is_none_is_refused_at_once(mem0: ModuleType, host: str) -> None:
    for key, where in ((ApiKeyText.new(), host), (KEY, host.replace("acme", "globex"))):
        with httpx.Client() as http, pytest.raises(ValueError, match="no such API key"):
            mem0.MemoryClient(api_key=key.text(), host=where, client=http)


def test_a_key_for_one_user_is_for_that_user_alone(mem0: ModuleType, host: str) -> None:
    anns = mem0.MemoryClient(api_key=ANNS_KEY.text(), host=host)
    [one] = anns.add("Ann skis.", user_id="ann")["results"]
    assert texts(anns.search("Who skis?", filters={"user_id": "ann"})) == ["Ann skis."]
    others = mem0_id("bob", our_id(one["id"])[1])
    refused: list[Callable[[], Any]] = [
        lambda: anns.add("x", user_id="bob"),
        lambda: anns.get(others),
        lambda: anns.delete(others),
        lambda: anns.get_all(filters={"user_id": "bob"}),
        lambda: anns.delete_all(agent_id="ann"),
    ]
    for call in refused:
        with pytest.raises(mem0.exceptions.AuthenticationError, match="for other users"):
            call()
    anns.client.close()


def test_environments_are_apart(mem0: ModuleType, host: str, user: str) -> None:
    prod, staging = (
        mem0.MemoryClient(api_key=KEY.text(), host=where) for where in (host, f"{host}/environments/staging")
    )
    staging.add("Alex tries it out.", user_id=user)
    assert texts(staging.get_all(filters={"user_id": user})) == ["Alex tries it out."]
    assert texts(prod.get_all(filters={"user_id": user})) == []
    for opened in (prod, staging):
        opened.client.close()


def test_the_paths_of_mem0s_own_server_lead_to_the_same(host: str, user: str) -> None:
    with httpx.Client(base_url=host, headers={"x-api-key": KEY.text()}) as http:
        [one] = http.post("/memories", json={"messages": CHAT[:1], "user_id": user}).json()["results"]
        found = http.post("/search", json={"query": "allergic?", "user_id": user, "limit": 3}).json()["results"]
        assert [memory["id"] for memory in found] == [one["id"]]
        assert texts(http.get("/memories", params={"user_id": user}).json()) == [CHAT[0]["content"]]
        path = f"/memories/{one['id'].replace('%', '%25')}"
        assert http.put(path, json={"text": "Alex may eat nuts."}).json()["memory"] == "Alex may eat nuts."
        assert (len(http.get(f"{path}/history").json()), http.delete(path).status_code) == (2, 200)
        assert http.get(path).status_code == 404
        assert http.delete("/memories", params={"user_id": user}).status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages": []}', b'{"messages": 5, "user_id": []}', b"\xff"])
def test_a_body_that_is_none_is_refused_in_words(host: str, body: bytes) -> None:
    headers = {"authorization": f"Token {KEY.text()}", "content-type": "application/json"}
    for path in ("/v3/memories/add/", "/v3/memories/search/", "/v3/memories/", "/memories"):
        refused = httpx.post(f"{host}{path}", content=body, headers=headers)
        assert refused.status_code == 400, path
        assert refused.json()["detail"], path


def texts(answer: dict[str, Any]) -> list[str]:
    return [one["memory"] for one in answer["results"]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("AND", "OR", "NOT", *ENTITIES, "metadata", "created_at", "categories", "eq", "in", "ne", "gte")
            )
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(filters=st.dictionaries(st.sampled_from(("AND", "OR", "NOT", "metadata", "created_at", "run_id")), JSON))
def test_any_filters_are_refused_or_taken_by_a_query(filters: dict[str, Any]) -> None:
    try:
        user_id, ours = parse_filters(requests.Body(filters=filters, user_id="ann"))
    except InvalidRecord:
        return
    try:
        Recall.model_validate({"type": "recall", "tenant_id": "t", "user_id": user_id, "query": "x", "filters": ours})
    except ValueError:
        return  # a value of a type, or of a size, that no filter takes: the engine's words say which


@given(body=st.binary(max_size=50) | JSON.map(orjson.dumps))
def test_any_body_is_refused_or_parsed(body: bytes) -> None:
    for model in (requests.Add, requests.Search, requests.GetAll):
        with contextlib.suppress(InvalidRecord):
            requests.read(model, body)


@given(user_id=st.text(min_size=1), memory_id=st.text(min_size=1))
def test_an_id_names_its_owner_and_its_memory(user_id: str, memory_id: str) -> None:
    assert our_id(mem0_id(user_id, memory_id)) == (user_id, memory_id)
