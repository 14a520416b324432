"""What a language model is told of the user before it answers."""

from recallflow import SearchResults

INTRODUCTION = "You are a helpful assistant. What you remember of the user, the most relevant first:"
NOTHING = "You are a helpful assistant. You remember nothing that bears on the question."


def build_prompt(question: str, found: SearchResults | None) -> list[dict[str, str]]:
    """The messages of a call, with the memories that fit into the search's `max_tokens`. None: the memory is away."""
    items = found.context.relevant_items if found and found.context else []
    lines = [f"- {item.created_at[:10]}: {item.content}" for item in items]
    system = "\n".join([INTRODUCTION, *lines]) if lines else NOTHING
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]
