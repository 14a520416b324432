"""What a text names, in several scripts, and what a memory is linked to."""

from typing import Any

from recallflow.operators.graph.extract import links, relations
from recallflow.operators.graph.names import Named, read_names
from recallflow.state.graph_codec import Description, NodeKey
from recallflow.state.rows import MemoryRow


def row(content: str = "", **fields: Any) -> MemoryRow:
    return MemoryRow("m", 0, 0, 0, content, 0, 0, **fields)


def roles(memory: MemoryRow, episode_id: str | None = None) -> dict[str, str]:
    return {key: link.role for key, link in links(memory, episode_id, read_names(memory.content)).items()}


def test_every_field_that_groups_memories_is_a_node() -> None:
    memory = row(
        "then Ann met Bob #hot",
        kind="preference",
        category="food",
        topics=["drinks"],
        tags=["tea"],
        project_id="github.com/acme/shop",
        name="Cleo",
        entities=[{"name": "Dee"}],
    )
    assert roles(memory, "ep_1") == {
        "type:preference": "type",
        "category:food": "category",
        "topic:drinks": "topic",
        "tag:tea": "tag",
        "tag:hot": "tag",
        "repo:github.com/acme/shop": "repo",
        "episode:ep_1": "episode",
        "entity:cleo": "author",
        "entity:dee": "entity",
        "entity:ann": "mention",
        "entity:bob": "mention",
    }


def test_a_role_is_no_person() -> None:
    assert roles(row("hello", kind="message", role="assistant")) == {"type:message": "type"}


def test_a_blank_name_is_no_node() -> None:
    blank = row(tags=[" "], relations=[{"source": " ", "type": "t", "target": "Ann"}])
    assert roles(blank) == {"type:message": "type", "entity:ann": "entity"}
    assert relations(blank) == []


def test_who_says_it_counts_before_that_it_is_said() -> None:
    memory = row("then Ann spoke", name="ANN", entities=[{"name": "Ann", "type": "person"}])
    link = links(memory, None, read_names(memory.content))["entity:ann"]
    assert (link.role, link.name, link.description) == ("author", "Ann", Description(None, {"type": "person"}))


def test_a_urn_is_a_node_beside_its_name() -> None:
    memory = row(entities=[{"name": "Churn model", "type": "model", "urn": "urn:x:churn"}])
    found = links(memory, None, Named())
    assert found["entity:churn model"].description == Description("urn:x:churn", {"type": "model"})
    assert found["entity:urn:x:churn"].description == Description(
        "urn:x:churn", {"name": "Churn model", "type": "model"}
    )


def test_a_relation_may_name_its_ends_by_urn() -> None:
    memory = row(
        entities=[{"name": "Assam", "urn": "urn:tea:assam"}],
        relations=[{"source": "Ann", "type": "drinks", "target": "urn:tea:assam", "properties": {"since": 2020}}],
    )
    relation, _ = relations(memory)
    assert relation[:5] == (NodeKey("entity:ann"), NodeKey("entity:assam"), "drinks", False, {"since": 2020})


def test_aliases_and_urn_are_relations_of_their_name() -> None:
    memory = row(
        entities=[{"name": "Robert", "urn": "urn:p:1", "aliases": ["Bob", "ROBERT", " "]}, {"name": "Ann"}],
        relations=[{"source": "Robert", "type": "same_as", "target": "urn:p:1"}],  # what is said already
    )
    robert = NodeKey("entity:robert")
    found = [(one.source, one.target, one.type) for one in relations(memory)]
    assert found == [(robert, NodeKey("entity:urn:p:1"), "same_as"), (robert, NodeKey("entity:bob"), "same_as")]
    assert roles(memory) == dict.fromkeys(["entity:robert", "entity:urn:p:1", "entity:bob", "entity:ann"], "entity") | {
        "type:message": "type"
    }
