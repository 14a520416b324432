"""Meanings of fields that neither their name nor their values tell. The reference shows them beside the fields."""

from collections.abc import Mapping

# Section of the reference, then field.
NOTES: Mapping[str, Mapping[str, str]] = {
    "Every event": {
        "id": "idempotency key; default: the record's position",
        "timestamp": "event time; default: the record's time",
        "environment": "isolates data as strictly as the tenant",
        "project_id": "project of a memory; filter of `recall` and `graph.trace`",
        "receipt": "requests a receipt",
    },
    "message": {
        "content": "required; may be null for an assistant's tool calls; a list is OpenAI's content parts",
        "name": "author",
        "metadata": "free form; filters can match its fields",
        "embedding": "vector of the content, with the configured model's size",
    },
    "memory": {
        "kind": "`fact` if omitted",
        "layer": "`long_term` if omitted",
        "importance": "0.5 if omitted",
        "confidence": "1 if omitted",
        "expires_at": "not in answers about times after it",
        "metadata": "free form; filters can match its fields",
        "name": "author",
        "derived_from": "the memory that it was made from",
        "embedding": "vector of the content, with the configured model's size",
    },
    "memory.update": {"memory_id": "the memory; other fields as in `memory`, null clears"},
    "memory.forget": {"memory_id": "this, or `filter`", "filter": "all given conditions must match"},
    "DerivedFrom": {
        "content_hash": "SHA-256 of the source's text in UTF-8",
        "others": "memories that were read with it",
        "model": "the model that made it",
        "source": "position of the event with the source memory",
    },
    "graph.archive": {"edges": "by `source`, `target` and `type`"},
    "memory.embedding": {
        "content_hash": "SHA-256 of the text in UTF-8",
        "source": "position of the event with the text",
    },
    "EdgeData": {"evidence": "id of the memory that states it, or a text"},
    "recall": {
        "k": "number of memories, clamped to 1 to 50; 20 in `decayed` if omitted",
        "strategy": "`hybrid_graph` adds related memories ([graph](../concepts/graph.md#use-in-recall))",
        "traversal_depth": "hops of graph expansion and boosts, clamped to 1 to 3",
        "weights": "weights of factors and boosts ([tuning](../concepts/recall.md#tune-weights))",
        "min_relevance": "excludes less relevant memories",
        "entity_urns": "names, URNs or node keys that the question is about",
        "max_episodes": "in `episode`: maximum number of episodes",
        "whole_episodes": "in `episode`: never shorten an episode, beyond `k` if needed",
        "max_tokens": "requests a `context` of up to this size",
        "select_categories": "a language model selects the summaries of the context",
        "check_sufficiency": "if a language model finds the summaries sufficient, they are the answer",
        "rewrite": "a language model splits the question into up to three",
        "as_of": "point in time of the answer",
        "include_history": "adds replaced, superseded and expired versions",
        "sla_target_ms": "time target: optional steps are skipped to meet it",
        "explain": "requests reasons (`why`) and the parts of each score (`explanation`)",
    },
    "Decay": {
        "tau_days": "of `exponential`",
        "max_age_days": "of `linear`",
        "threshold_days": "of `step`",
        "decay_days": "of `hyperbolic`, and of the mode `decayed`",
    },
    "memories.list": {"limit": "size of a page", "after": "cursor of the previous page"},
    "episodes.list": {"limit": "the newest episodes; `session_id` selects one session"},
    "graph.explore": {
        "whole": "the whole graph in pages, instead of `nodes` and `hops`",
        "nodes": "memory ids, node keys, URNs or names; the newest memories if omitted",
        "limit": "items of a page of the whole graph",
        "after": "cursor of the previous page",
    },
    "graph.facts": {"entities": "entities at the ends of the relations"},
    "ReplyTo": {"topic": "a topic of `topics.replies`"},
}
EVERY_QUERY: Mapping[str, str] = {
    "wait_for": "positions that must be applied before the answer",
    "wait_timeout_ms": "maximum wait; then the answer has the warning `stale_read`, or is the error `catching_up`",
    "reply_to": "topic of the response, instead of the response topic",
}


def note_of(section: str, field: str) -> str:
    """Return the note on a field, or an empty text."""
    return NOTES.get(section, {}).get(field, "") or EVERY_QUERY.get(field, "")
