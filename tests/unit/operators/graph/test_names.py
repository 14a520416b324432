"""Names in texts of several scripts, and the links of a memory."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.names import score, sentences
from recallflow.operators.graph.names import (
    DOUBTFUL_MAX,
    NAME_CHARACTERS,
    NAMES_MAX,
    READ_CHARACTERS,
    TextNames,
    read_names,
    with_known,
)
from recallflow.operators.graph.write import links, relations
from recallflow.state.entity_names import is_caseless
from recallflow.state.graph_codec import NodeDescription, NodeKey, node_key
from recallflow.state.rows import MemoryRow


def entities(text: str, *known: str) -> set[str]:
    """The names in a text, where the graph has some names already."""
    nodes = {node_key("entity", name) for name in known}
    caseless = [name for name in known if is_caseless(name)]
    return {*with_known(read_names(text), nodes.__contains__, text, caseless).entities}


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
    assert read_names(text)._replace(doubtful=()) == TextNames(names)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ask @ann and @bob.k, not x@y.com", TextNames(("ann", "bob.k"))),
        ("今天我见了@王小明 #旅行", TextNames(("王小明",), ("旅行",))),
        ("سافرت مع @ليلى #سفر", TextNames(("ليلى",), ("سفر",))),
        ("more #Tea, #green-tea and #2fast, but issue #12 and a&#b;", TextNames((), ("Tea", "green-tea", "2fast"))),
        ("it is urn:isbn:0451450523.", TextNames((), (), ("urn:isbn:0451450523",))),
        ("(URN:matih:model:acme:churn)", TextNames((), (), ("URN:matih:model:acme:churn",))),
        (
            "see https://github.com/Jane/side-project.git and gitlab.com/a/b/-/issues",
            TextNames((), (), ("github.com/Jane/side-project", "gitlab.com/a/b")),
        ),
        ("notgithub.com/a/b and a burn:it:down", TextNames()),
    ],
)
def test_mentions_tags_and_urns(text: str, named: TextNames) -> None:
    assert read_names(text)._replace(doubtful=()) == named


def test_names_beyond_the_read_length_are_ignored() -> None:
    assert read_names("x" * READ_CHARACTERS + " and Ann #tag urn:a:b").entities == ()


@pytest.mark.parametrize(
    ("text", "known", "names"),
    [
        ("I saw Dr. Lopez", [], {"Lopez"}),
        ("I saw Prof. Dr. Lopez, and Mrs Lopez-Diaz", [], {"Lopez", "Lopez-Diaz"}),
        ("ich war bei Frau Dr. Schneider", [], {"Schneider"}),
        ("Yesterday Ann rang", [], {"Ann"}),
        ("The dentist is on Monday, the lease ends in March, says the Doctor", [], set()),
        ("Bob And Carol And Ted", [], {"Bob", "Carol", "Ted"}),
        ("Bob, Carol and Ted came", [], {"Bob", "Carol", "Ted"}),
        ("When Is The Best Time To Visit Japan", [], {"Japan"}),
        ("with New  York\u00a0City", [], {"New York City"}),  # blanks of any kind, two of them
        ("with Chris' car and Ann’s bike", [], {"Chris", "Ann"}),
        ("with J. K. Rowling and George W. Bush", [], {"Rowling", "George Bush"}),
        ("and then Ann left. Bob stayed", [], {"Ann"}),
        ("we fly to Los Angeles", [], {"Los Angeles"}),
        ("vivimos en La Paz, no en el Rio de Janeiro", [], {"La Paz", "Rio de Janeiro"}),
        ("ich habe Hunger und suche eine Wohnung in Wien", [], {"Wien"}),
        ("Maria moved to Lisbon last spring.", ["Maria"], {"Maria", "Lisbon"}),
        ("Maria moved to Lisbon last spring.", [], {"Lisbon"}),
        ("yesterday ann smith and bob rang", ["Ann Smith", "Ann", "Bob"], {"ann smith", "bob"}),
        ("CALL BOB", ["bob"], {"bob"}), ("so then Will came", ["Will"], {"Will"}), ("so it will be", ["Will"], set()),
        ("so then April came", ["April"], {"April"}), ("that was in April", ["April"], set()),
        ("that was on April 5", ["April"], set()), ("Annas Auto steht in der Garage", ["Anna"], {"Anna"}),
        ("die Schweiz ist schön", ["Schweiz"], {"Schweiz"}), ("昨天我和王小明去了北京", ["王小明"], {"王小明"}),
        ("昨日、田中さんと東京へ行きました", ["田中"], {"田中"}), ("어제 민수가 부산에 갔어요", ["민수"], {"민수"}),
        ("我是王小明", ["王小明", "小明", "王"], {"王小明"}), ("ذهبت ليلى إلى القاهرة", ["ليلى"], {"ليلى"}),
        ("عليها أن تذهب", ["علي"], set()), ("रवि दिल्ली गया", ["रवि", "दिल्ली"], {"रवि", "दिल्ली"}),
        ("रविवार को", ["रवि"], set()),
    ],
)  # fmt: skip
def test_names_without_titles_calendar_and_grammar_or_known(text: str, known: list[str], names: set[str]) -> None:
    assert entities(text, *known) == names


def test_a_name_has_at_most_so_many_characters() -> None:
    longest = "A" + "n" * (NAME_CHARACTERS - 1)
    assert entities(f"with {longest} and Bob") == {longest, "Bob"}
    assert entities(f"with {longest}n and Bob") == {"Bob"}
    assert entities("with " + "Ann Bo " * 40) == set()


@pytest.mark.parametrize("half", ["built_on", "kept_aside"])
def test_names_in_chats_are_found_and_little_else(half: str) -> None:
    result = score(sentences(half))
    assert result.wanted > 100
    assert result.precision >= 0.97
    assert result.recall >= 0.95


# Letters and marks that rules look for, so that random texts meet them.
_PIECES = st.sampled_from([
    *("Ann", "ann", "Dr.", "Mr", "de", "von", "and", "May", "in", "'s", "’", "I", "J.", "Will", "@bob", "#tea"),
    *("urn:a:b", "É", "ß", "-", "Monday", "The", "Москва"),
    *(" ", "  ", ", ", ". ", "\n", "王小明", "田中", "ليلى", "민수가"),
])  # fmt: skip


@given(text=st.text(max_size=300) | st.lists(_PIECES, max_size=60).map("".join))
def test_any_text_yields_only_its_own_names(text: str) -> None:
    named = read_names(text)
    for name in named.entities:
        assert all(word in text for word in name.split())
        assert len(name) <= NAME_CHARACTERS or name in text
    assert len(named.doubtful) <= DOUBTFUL_MAX
    everything = with_known(named, lambda _: True, text, ["王小明", "ليلى", "민수", "王小"])
    assert len(everything.entities) <= NAMES_MAX
    assert with_known(named, lambda _: False, text, []) == named
    lowered = text.casefold()
    assert all(
        set(word.casefold()) <= {*lowered, *text.lower()} for name in everything.entities for word in name.split()
    )


def test_lookups_do_not_grow_with_the_text() -> None:
    words = [f"wort{number}" for number in range(5_000)]
    random.Random(0).shuffle(words)
    asked: list[str] = []

    def ask(key: str) -> bool:
        asked.append(key)
        return False

    with_known(read_names(" ".join(words)), ask, "", [])
    assert 0 < len(asked) <= DOUBTFUL_MAX


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
        "type:preference": "type", "category:food": "category", "topic:drinks": "topic", "tag:tea": "tag",
        "tag:hot": "tag", "repo:github.com/acme/shop": "repo", "episode:ep_1": "episode", "entity:cleo": "author",
        "entity:dee": "entity", "entity:ann": "mention", "entity:bob": "mention",
    }  # fmt: skip


def test_a_blank_name_is_no_node() -> None:
    blank = row(tags=[" "], relations=[{"source": " ", "type": "t", "target": "Ann"}])
    assert roles(blank) == {"type:message": "type", "entity:ann": "entity"}
    assert relations(blank) == []


def test_role_of_the_author_precedes_a_mention() -> None:
    memory = row("then Ann spoke", name="ANN", entities=[{"name": "Ann", "type": "person"}])
    link = links(memory, None, read_names(memory.content))["entity:ann"]
    assert (link.role, link.name, link.description) == ("author", "Ann", NodeDescription(None, {"type": "person"}))


def test_a_urn_is_a_node_beside_its_name() -> None:
    memory = row(entities=[{"name": "Churn model", "type": "model", "urn": "urn:x:churn"}])
    found = links(memory, None, TextNames())
    assert found["entity:churn model"].description == NodeDescription("urn:x:churn", {"type": "model"})
    assert found["entity:urn:x:churn"].description == NodeDescription(
        "urn:x:churn", {"name": "Churn model", "type": "model"}
    )


def test_a_relation_may_name_its_ends_by_urn() -> None:
    memory = row(
        entities=[{"name": "Assam", "urn": "urn:tea:assam"}],
        relations=[{"source": "Ann", "type": "drinks", "target": "urn:tea:assam", "properties": {"since": 2020}}],
    )
    relation, _ = relations(memory)
    assert relation[:3] == (NodeKey("entity:ann"), NodeKey("entity:assam"), "drinks")
    assert (relation.statement.archived, relation.statement.properties) == (False, {"since": 2020})


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
