"""Maximum sizes of events and queries (docs/reference/limits.md), and the names of tenants' limits."""

RECORD_BYTES = 1024 * 1024
VALUES_MAX = 10_000  # JSON values of one event, at every depth
UNKNOWN_FIELDS_MAX = 64  # ignored fields of an event
PARTS_MAX = 1_000  # content parts of a message
LABELS_MAX = 100  # tags, and topics
ENTITIES_MAX = 200
ALIASES_MAX = 100  # of all entities of one event
RELATIONS_MAX = 100
EDGES_MAX = 200  # of one graph event, and entities of a `graph.archive`
STATEMENTS_MAX = 200  # stored evidence of one edge: the newest memories that state it
EVIDENCE_MAX = 1_000  # edges with the same memory as evidence
SUPERSEDED_MAX = 200  # memories that supersede one memory
DESCRIBERS_MAX = 250  # memories scanned for the next description of a node
SOURCES_MAX = 50  # additional source memories of one derived event
MADE_MAX = 100  # memories derived from the current text of one memory
MADE_EVER_MAX = 1_000  # memories derived from all versions of its text
SUMMARY_CHARACTERS = 20_000
EVIDENCE_CHARACTERS = 2_000
FILTER_VALUES_MAX = 200  # of one condition of a query
FILTER_LEVELS_MAX = 8  # of nested filters
FILTER_CONDITIONS_MAX = 100  # of all filters of a query, at all levels
FILTER_FIELDS_MAX = 20  # metadata fields of one filter
# Memories of the entities in a query's filters, the newest first. A query as of a past time reads each more slowly.
FILTER_MEMBERS_MAX, FILTER_PAST_MEMBERS_MAX = 50_000, 1_000
URNS_MAX = 50
WHOLE_EPISODES_MAX = 200  # memories of an answer with `whole_episodes`
FACT_ENTITIES_MAX = 20  # of one `graph.facts`
CURSOR_CHARACTERS = 256  # of `after`, the cursor of a page
PAGE_BYTES = 512 * 1024  # of the memories of a page, unless its first memory is larger
POSITIONS_MAX = 100  # in `wait_for` of a query
USERS_MAX = 10_000  # in the scope of an API key; the same limit applies to projects and to environments
# The rest of a longer text is stored and shown, but not indexed.
READ_CHARACTERS = 32_768
QUERY_CHARACTERS = 8_000
METADATA_VALUES_MAX = 64  # indexed metadata values of one memory
METADATA_NAME_CHARACTERS, METADATA_TEXT_CHARACTERS = 128, 512  # longer ones are not indexed
QUERY_WORDS = 100  # content words of a query that are looked up
QUERY_DATES = 16
PARTICIPANTS_MAX = 1_000  # most frequent authors whose names are looked for in a query
NAMED_MAX = 32  # participants recognised in one query
PROBLEMS_MAX = 20  # in one error
PROBLEM_CHARACTERS = 1_000  # of a problem, and of the name of its field
# Without a control event there is no limit.
QUOTAS = {
    (EVENTS_PER_S := "events_per_s"): "memory events a second, in each partition of their topic",
    (QUERIES_PER_S := "queries_per_s"): "queries a second, in each partition of their topic",
    (MEMORIES_PER_USER := "memories_per_user"): "memories that are not forgotten",
    (BYTES_PER_USER := "bytes_per_user"): "bytes of the texts of unforgotten memories, with all their versions",
    (EDGES_PER_USER := "edges_per_user"): "edges of a user's graph",
    (LLM_TOKENS_PER_DAY := "llm_tokens_per_day"): "tokens of language models a day",
    (EMBEDDING_TOKENS_PER_DAY := "embedding_tokens_per_day"): "tokens of embedding services a day",
}
