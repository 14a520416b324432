"""Maximum sizes of events and queries, from `recallflow.limits`."""

from recallflow import limits
from recallflow.parsing import MAX_DEPTH
from recallflow.queries import MAX_TOKENS_MAX
from tools.reference import markdown
from tools.reference.markdown import table

INTRODUCTION = (
    "From this page you know the maximum size of every part of an event or query. One process serves many owners, so "
    "larger input is refused as `invalid_event`, with the field, the limit and the remedy. Nothing is cut silently."
)


def page() -> str:
    """Return the page of all limits."""
    return markdown.page(
        "Limits",
        INTRODUCTION,
        table(("limit", "maximum"), [(name, _numbers(*values)) for name, *values in _maxima()]),
        "Longer values of these are accepted, but only a part is used for search:",
        table(("value", "used", "rest"), _partly_used()),
    )


def _maxima() -> list[tuple[str, int] | tuple[str, int, int] | tuple[str, int, int, int]]:
    return [
        ("bytes of a record", limits.RECORD_BYTES),
        ("JSON values of an event; nested levels", limits.VALUES_MAX, MAX_DEPTH - 1),
        ("unknown fields", limits.UNKNOWN_FIELDS_MAX),
        ("characters of ids (`id`, `tenant_id`, `user_id`, `session_id`, `memory_id`, …)", 128),
        ("characters of names (`name`, `category`, tag, URN, end of an edge, …)", 512),
        ("parts of `content`", limits.PARTS_MAX),
        ("`tags`, `topics`, each", limits.LABELS_MAX),
        ("`entities`; `aliases` of all entities of a memory", limits.ENTITIES_MAX, limits.ALIASES_MAX),
        ("`relations`", limits.RELATIONS_MAX),
        ("characters of a `summary`; of the `evidence` of an edge", limits.SUMMARY_CHARACTERS,
         limits.EVIDENCE_CHARACTERS),
        ("`edges` of `graph.edges`; `entities`, and `edges`, of `graph.archive`", limits.EDGES_MAX),
        ("edges that name one memory as `evidence`", limits.EVIDENCE_MAX),
        ("memories that supersede one memory", limits.SUPERSEDED_MAX),
        ("`others` of `derived_from`", limits.SOURCES_MAX),
        ("memories derived from one text; from all texts of a memory", limits.MADE_MAX, limits.MADE_EVER_MAX),
        ("`filters`: values of a list; nested levels; conditions", limits.FILTER_VALUES_MAX, limits.FILTER_LEVELS_MAX,
         limits.FILTER_CONDITIONS_MAX),
        ("`filters`: `entities`; `metadata` fields", limits.URNS_MAX, limits.FILTER_FIELDS_MAX),
        ("`entity_urns`", limits.URNS_MAX),
        ("memories of an answer with `whole_episodes`", limits.WHOLE_EPISODES_MAX),
        ("`nodes` of `graph.explore`, `entities` of `graph.facts`", limits.FACT_ENTITIES_MAX),
        ("positions of `wait_for`", limits.POSITIONS_MAX),
        ("`max_tokens`", MAX_TOKENS_MAX),
        ("entries of the lists of an API key", limits.USERS_MAX),
        ("characters of `why` and `description` of a control event", limits.SUMMARY_CHARACTERS),
    ]  # fmt: skip


def _partly_used() -> list[tuple[str, str, str]]:
    metadata = (
        f"{limits.METADATA_VALUES_MAX} fields with names of up to {limits.METADATA_NAME_CHARACTERS} characters: texts "
        f"of up to {limits.METADATA_TEXT_CHARACTERS} characters, numbers, booleans, and lists of these"
    )
    members = (
        f"the newest {limits.FILTER_MEMBERS_MAX:,}; with `as_of` or `include_history` "
        f"{limits.FILTER_PAST_MEMBERS_MAX:,}"
    )
    question = (
        f"the first {limits.QUERY_CHARACTERS:,} characters, {limits.QUERY_WORDS} different words, {limits.QUERY_DATES} "
        f"dates, {limits.NAMED_MAX} names of the {limits.PARTICIPANTS_MAX:,} participants who wrote the most"
    )
    return [
        ("`content`", f"the first {limits.READ_CHARACTERS:,} characters",
         "stored, not searched; the receipt has the code `READ_IN_PART`"),
        ("`metadata`, for filters", metadata, "stored, not filtered"),
        ("memories of the entities in `filters`", members, "excluded, with the warning `filter_cut`"),
        ("memories that state an edge", f"the newest {limits.STATEMENTS_MAX}", "not evidence"),
        ("`query`", question, "ignored; the warning `query_cut` if characters are cut"),
    ]  # fmt: skip


def _numbers(*values: int) -> str:
    return "; ".join(f"{value:,}" for value in values)
