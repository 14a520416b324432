"""What a tenant may be given limits of."""

# Without a control event there is no limit.
EVENTS_PER_S = "events_per_s"
QUERIES_PER_S = "queries_per_s"
MEMORIES_PER_USER = "memories_per_user"
BYTES_PER_USER = "bytes_per_user"
EDGES_PER_USER = "edges_per_user"
LLM_TOKENS_PER_DAY = "llm_tokens_per_day"
EMBEDDING_TOKENS_PER_DAY = "embedding_tokens_per_day"
QUOTAS = {
    EVENTS_PER_S: "memory events a second, in each partition of their topic",
    QUERIES_PER_S: "queries a second, in each partition of their topic",
    MEMORIES_PER_USER: "memories that are not forgotten",
    BYTES_PER_USER: "bytes of the texts of these, with all their versions",
    EDGES_PER_USER: "edges of a user's graph",
    LLM_TOKENS_PER_DAY: "tokens of language models a day",
    EMBEDDING_TOKENS_PER_DAY: "tokens of embedding services a day",
}
