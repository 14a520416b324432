"""What a text names, in several scripts, and what a memory is linked to."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.graph.extract import NAMES_MAX, READ_CHARACTERS, Named, links, read_names, relations
from recallflow.state.graph_codec import Description, NodeKey, node_key
from recallflow.state.rows import MemoryRow


def row(content: str = "", **fields: Any) -> MemoryRow:
    return MemoryRow("m", 0, 0, 0, content, 0, 0, **fields)


def roles(memory: MemoryRow, episode_id: str | None = None) -> dict[str, str]:
    return {key: link.role for key, link in links(memory, episode_id, read_names(memory.content)).items()}


# ── names in a text ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("we met Caroline Smith in New York", ("Caroline Smith", "New York")),
        ("Hey Caroline, and Bob too", ("Caroline", "Bob")),  # a greeting begins the sentence, not the name
        ("Dogs bark. Birds sing! So do we? Yes: Always\nEven then", ()),  # every sentence begins with a capital
        ("Dogs bark, but Dogs United do not", ("Dogs United",)),
        ("I think I saw A man. I'm fine, and It's late", ()),
        ("it was Ann's dog, then O'Brien's, by Jean-Luc", ("Ann", "O'Brien", "Jean-Luc")),
        ("we use GPT-4 and the iPhone", ("GPT-4",)),
        ("THIS IS ALL VERY LOUD, BOB", ()),
        ("🎉 Congrats! we saw “Casablanca” with Ann", ("Casablanca", "Ann")),
        ("see https://Example.com/Some/Path, or mail Ann.Lee@Example.com", ()),
        ("", ()),
        ("gestern fuhr Anna nach Köln", ("Anna", "Köln")),
        ("hier, J'ai vu Élise à L'Haÿ", ("Élise", "L'Haÿ")),
        ("вчера Анна Иванова приехала в Москву", ("Анна Иванова", "Москву")),
        ("χθες η Μαρία πήγε στην Αθήνα", ("Μαρία", "Αθήνα")),
        ("dün Ayşe ile Kadıköy'e gittik", ("Ayşe", "Kadıköy")),
        ("երեկ Անի գնաց Երևան", ("Անի", "Երևան")),
        ("昨日、田中さんと東京へ行きました", ()),  # no case: names come with the memory, or by mentions
        ("ذهبت ليلى إلى القاهرة", ()),
    ],
)
def test_capitalised_names_inside_sentences(text: str, names: tuple[str, ...]) -> None:
    assert read_names(text) == Named(names)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ask @ann and @bob.k, not x@y.com", Named(("ann", "bob.k"))),
        ("今天我见了@王小明 #旅行", Named(("王小明",), ("旅行",))),
        ("سافرت مع @ليلى #سفر", Named(("ليلى",), ("سفر",))),
        ("more #Tea, #green-tea and #2fast, but issue #12 and a&#b;", Named((), ("Tea", "green-tea", "2fast"))),
        ("it is urn:isbn:0451450523.", Named((), (), ("urn:isbn:0451450523",))),
        ("(URN:matih:model:acme:churn)", Named((), (), ("URN:matih:model:acme:churn",))),
        (
            "see https://github.com/Jane/side-project.git and gitlab.com/a/b/-/issues",
            Named((), (), ("github.com/Jane/side-project", "gitlab.com/a/b")),
        ),
        ("notgithub.com/a/b and a burn:it:down", Named()),
    ],
)
def test_mentions_tags_and_urns(text: str, named: Named) -> None:
    assert read_names(text) == named


def test_a_name_said_twice_counts_once_and_a_list_is_cut() -> None:
    assert read_names("with Ann and Ann and Bob").entities == ("Ann", "Bob")
    many = "with " + ", ".join(f"Name{n}" for n in range(50))
    assert read_names(many).entities == tuple(f"Name{n}" for n in range(NAMES_MAX))


def test_what_a_long_text_names_behind_its_beginning_is_not_read() -> None:
    assert read_names("x" * READ_CHARACTERS + " and Ann #tag urn:a:b").entities == ()


@given(text=st.text(max_size=300))
def test_any_text_can_be_read_and_names_only_what_it_says(text: str) -> None:
    named = read_names(text)
    assert all(word in text for names in named for name in names for word in name.split())
    assert all(key.partition(":")[2] for key in links(row(text), None, named))


# ── what a memory is linked to ────────────────────────────────────────────────────────────────────────────────────


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


@pytest.mark.parametrize("spelling", ["new york", "New  York", "NEW YORK", " Ｎｅｗ Ｙｏｒｋ "])
def test_a_name_has_one_key_however_it_is_spelt(spelling: str) -> None:
    assert node_key("entity", spelling) == "entity:new york"


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
    (relation,) = relations(memory)
    assert relation[:5] == (NodeKey("entity:ann"), NodeKey("entity:assam"), "drinks", False, {"since": 2020})
