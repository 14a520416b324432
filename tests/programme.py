"""One program for an engine in its own process and for one on Kafka."""

from typing import Any

from recallflow import Memory, MemoryFeedback, QueryFailed, RecallClient

AT = "2026-03-01T12:00:00Z"  # questions and answers are of then: a clock's time would differ
TALK: list[dict[str, Any]] = [
    {"role": "user", "name": "Ann", "content": "I'm off to Oslo", "timestamp": "2026-02-01T10:00:00Z", "id": "t1"},
    {
        "role": "assistant", "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "book", "arguments": "{}"}}],
        "timestamp": "2026-02-01T10:00:05Z", "id": "t2",
    },
    {
        "role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Booked: flight to Oslo"}],
        "timestamp": "2026-02-01T10:00:09Z", "id": "t3",
    },
]  # fmt: skip
# Of what is answered, all but when and where the engine took it in.
OF_THE_LOG = {"ingested_at", "query_id", "applied", "processing_time_ms", "sla_met", "routing_info"}


def run(memory: Memory | RecallClient, user: str) -> dict[str, Any]:
    """Call every verb, and read the effects of earlier ones."""
    seen: dict[str, Any] = {}
    added = memory.add(
        "I live in Porto", user=user, id="home", timestamp="2026-01-01T00:00:00Z",
        relations=[{"source": "Ann", "type": "lives_in", "target": "Porto"}],
    )  # fmt: skip
    seen["added"] = added.ids
    seen["found"] = plain(memory.search("Where does Ann live?", user=user, k=5, timestamp=AT))
    seen["talk"] = memory.add(TALK, user=user, session="s1").ids
    memory.update("home", "I live in Lisbon", user=user, timestamp="2026-02-02T00:00:00Z")
    memory.add("Ann likes tea", user=user, id="tea", kind="preference", tags=["food"], timestamp="2026-02-03T00:00:00Z")
    memory.send(MemoryFeedback(type="memory.feedback", tenant_id="acme", user_id=user, memory_id="tea", useful=True))
    seen["home"] = plain(memory.get("home", user=user))
    seen["tea"] = plain(memory.get("tea", user=user))
    seen["history"] = plain(memory.history("home", user=user))
    seen["facts"] = plain(memory.facts("Porto", user=user))
    seen["episodes"] = [one.model_dump(exclude={"open"}) for one in memory.episodes(user=user, session="s1")]
    seen["context"] = plain(memory.search("Oslo", user=user, max_tokens=100, timestamp=AT).context)
    page = memory.all(user=user, limit=2)
    seen["pages"] = [page.total, plain(page), plain(memory.all(user=user, limit=2, after=page.after))]
    seen["each"] = [one.id for one in memory.each(user=user, filters={"kinds": ["message"]}, limit=1)]
    memory.forget(user=user, where={"session_id": "s1"})
    memory.forget("tea", user=user)
    seen["stats"] = memory.stats(user=user).model_dump(exclude={"index_bytes"})
    seen["nothing"] = [memory.get("tea", user=user), len(memory.history("nowhere", user=user))]
    try:
        memory.facts(entities=["Nobody"], user=user)
    except QueryFailed as error:
        seen["error"] = error.error.code
    memory.erase(user=user)
    seen["erased"] = len(memory.all(user=user))
    return seen


def plain(answer: Any) -> Any:
    """Return an answer as plain values, without parts that vary between runs."""
    if answer is None or isinstance(answer, str | int | float | bool):
        return answer
    if hasattr(answer, "model_dump"):
        return plain(answer.model_dump(mode="json"))
    if isinstance(answer, dict):
        return {name: plain(value) for name, value in answer.items() if name not in OF_THE_LOG}
    return [plain(one) for one in answer]
