"""The example of seed 004: a whole conversation through `recallflow pipe`."""

from tests.unit.cli.harness import Cli, event, jsonl, parsed
from tests.unit.operators.harness import ids

MINUTE_MS, DAY_MS = 60_000, 86_400_000
MODEL = "urn:acme:model:leaver"


def test_conversation_is_recalled_in_order_with_its_entity(cli: Cli) -> None:
    """Ask in a session with a key entity: the conversation about the entity comes whole, in order, and first."""
    meeting = [
        ("m1", "Mia", "Morning, shall we begin?"),
        ("m2", "Mia", "Our Leaver flags accounts that are about to cancel."),
        ("m3", "Raj", "Yes, and Leaver got better with the support tickets."),
        ("m4", "Mia", "Fine. We decided to retrain it every 14 days."),
        ("m5", "Raj", "See you."),
    ]
    chatter = [("c1", "Raj", "A customer forgot a hat here."), ("c2", "Mia", "No idea.")]
    told = [
        event("message", day * DAY_MS + at * MINUTE_MS, id=name, session_id=session, name=author, content=text)
        for day, session, said in ((1, "review", meeting), (2, "lunch", chatter))
        for at, (name, author, text) in enumerate(said)
    ]
    entity = {"name": "Leaver", "type": "model", "urn": MODEL}
    fact = event("memory", 3 * DAY_MS, id="f1", session_id="review", content="Its owner is Mia.", entities=[entity])
    question = {"query": "What do we know about the customer model?", "session_id": "next", "mode": "episode", "k": 20}
    asked = [
        event("recall", 5 * DAY_MS, **question),
        event("recall", 5 * DAY_MS, **question, entity_urns=[MODEL]),
    ]
    done = cli("pipe", stdin=jsonl(*told, fact, *asked))
    assert done.stderr == ""
    by_words, by_entity = parsed(done.stdout)
    whole = [*(name for name, *_ in meeting), "f1"]
    assert ids(by_words) == ["c1", "c2", *whole], "words alone lead to the forgotten hat"
    assert ids(by_entity) == [*whole, "c1", "c2"]
    first, _ = by_entity["episodes"]
    assert (first["session_id"], first["size"], first["members_returned"]) == ("review", 6, 6)
    assert "We decided to retrain it every 14 days." in first["summary"]
    assert "See you." not in first["summary"]
    scores = [memory["score"] for memory in by_entity["memories"]]
    assert scores == sorted(scores, reverse=True)
