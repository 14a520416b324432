"""What the columns of the semantic signal weigh, by what the embedder knows.

From a softmax regression on LoCoMo's development conversations (benchmarks/fit_weights.py), rounded; only their ratios
count, and their sum's scale is that of log-odds.
"""

from collections.abc import Mapping
from types import MappingProxyType

from recallflow.embedder import Kind

SPELLING_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "dense": 0.28,
        "word": 0.13,
        "word_before": 0.33,
        "window": 8.9,
        "answers": 2.15,
        "speaker": 2.75,
        "speaker_asks": -0.65,
        "subject": 1.25,
        "date": 4.55,
        "when": 2.35,
        "opens": 1.0,
    }
)
STATIC_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "dense": 0.22,
        "word": 0.29,
        "word_before": 0.54,
        "window": 8.45,
        "answers": 2.2,
        "speaker": 2.65,
        "speaker_asks": -0.55,
        "subject": 1.25,
        "date": 4.25,
        "when": 2.3,
        "opens": 0.95,
    }
)
CONTEXTUAL_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "dense": -0.07,
        "word": 0.6,
        "word_before": 0.81,
        "window": 6.25,
        "answers": 1.6,
        "speaker": 2.65,
        "speaker_asks": -0.6,
        "subject": 1.05,
        "date": 4.2,
        "when": 1.95,
        "opens": 0.75,
    }
)
WEIGHTS: Mapping[Kind, Mapping[str, float]] = MappingProxyType(
    {"spelling": SPELLING_WEIGHTS, "static": STATIC_WEIGHTS, "contextual": CONTEXTUAL_WEIGHTS}
)
# What is left to go by without the question's vector.
LEXICAL_WEIGHTS: Mapping[str, float] = MappingProxyType({n: w for n, w in SPELLING_WEIGHTS.items() if n != "dense"})
