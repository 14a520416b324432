"""Maximum sizes of events and queries (docs/reference/limits.md), and the names of tenants' limits."""

RECORD_BYTES = 1024 * 1024
VALUES_MAX = 10_000  # JSON values of one event, at every depth
UNKNOWN_FIELDS_MAX = 64  # ignored fields of an event

PARTS_MAX = 1_000  # of a message's content
LABELS_MAX = 100  # tags, and topics
ENTITIES_MAX = 200
ALIASES_MAX = 100  # of all entities that come with a memory
RELATIONS_MAX = 100
EDGES_MAX = 200  # of one graph event, and entities of a `graph.archive`
STATEMENTS_MAX = 200  # of one edge: the newest memories that state it
EVIDENCE_MAX = 1_000  # edges that one memory is given as evidence of
SUPERSEDED_MAX = 200  # memories that one memory is superseded by
DESCRIBERS_MAX = 250  # memories that are scanned for the next description of a node
SOURCES_MAX = 50  # further source memories of one event
MADE_MAX = 100  # memories that are made of one memory, of the text that it has
MADE_EVER_MAX = 1_000  # of texts that it had, too
SUMMARY_CHARACTERS = 20_000
EVIDENCE_CHARACTERS = 2_000
FILTER_VALUES_MAX = 200  # of one filter of a question
FILTER_LEVELS_MAX = 8  # of filters within each other
FILTER_CONDITIONS_MAX = 100  # of a question's filters, at every level
FILTER_FIELDS_MAX = 20  # of metadata, of one filter
# The newest memories of the entities in a question's filters; each takes longer as of a past time.
FILTER_MEMBERS_MAX, FILTER_PAST_MEMBERS_MAX = 50_000, 1_000
URNS_MAX = 50
WHOLE_EPISODES_MAX = 200  # memories of an answer in whole episodes
FACT_ENTITIES_MAX = 20  # of one `graph.facts`
CURSOR_CHARACTERS = 256  # of `after`, where a page ends
PAGE_BYTES = 512 * 1024  # of the memories of a page, unless the first has more
POSITIONS_MAX = 100  # that a question waits for
USERS_MAX = 10_000  # that an API key may act for; projects and environments too

# The rest of a longer text is stored and shown, but not indexed.
READ_CHARACTERS = 32_768
QUERY_CHARACTERS = 8_000
METADATA_VALUES_MAX = 64  # of one memory, that filters know
METADATA_NAME_CHARACTERS, METADATA_TEXT_CHARACTERS = 128, 512  # longer ones they do not
QUERY_WORDS = 100  # content words that are looked up
QUERY_DATES = 16
PARTICIPANTS_MAX = 1_000  # names to find in a question, of the most frequent authors
NAMED_MAX = 32  # of them, in one question

PROBLEMS_MAX = 20  # named in one refusal
PROBLEM_CHARACTERS = 1_000  # of each, as of the name of its field


# Without a control event there is no limit.
QUOTAS = {
    (EVENTS_PER_S := "events_per_s"): "memory events a second, in each partition of their topic",
    (QUERIES_PER_S := "queries_per_s"): "queries a second, in each partition of their topic",
    (MEMORIES_PER_USER := "memories_per_user"): "memories that are not forgotten",
    (BYTES_PER_USER := "bytes_per_user"): "bytes of the texts of these, with all their versions",
    (EDGES_PER_USER := "edges_per_user"): "edges of a user's graph",
    (LLM_TOKENS_PER_DAY := "llm_tokens_per_day"): "tokens of language models a day",
    (EMBEDDING_TOKENS_PER_DAY := "embedding_tokens_per_day"): "tokens of embedding services a day",
}
