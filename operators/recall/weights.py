"""What the columns of the semantic signal weigh, by what the embedder knows.

From a softmax regression on LoCoMo's development conversations (benchmarks/fit_weights.py), rounded; only their ratios
count, and their sum's scale is that of log-odds.
"""

from collections.abc import Mapping
from types import MappingProxyType

from recallflow.embedder import Kind

SPELLING_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "dense": 0.27,
        "word": 0.11,
        "word_before": 0.21,
        "word_around": 0.19,
        "window_2": 3.2,
        "window_4": 4.9,
        "bigram": 1.1,
        "answers": 2.3,
        "back_2": 0.37,
        "speaker": 2.7,
        "speaker_asks": -0.7,
        "subject": 1.25,
        "date": 4.6,
        "when": 2.3,
        "opens": 1.0,
    }
)
STATIC_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "dense": 0.21,
        "word": 0.23,
        "word_before": 0.41,
        "word_around": 0.22,
        "window_2": 4.1,
        "window_4": 3.8,
        "bigram": 1.2,
        "answers": 2.4,
        "speaker": 2.7,
        "speaker_asks": -0.55,
        "subject": 1.25,
        "date": 4.3,
        "when": 2.2,
        "opens": 1.0,
    }
)
CONTEXTUAL_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "dense": -0.06,
        "word": 0.47,
        "word_before": 0.45,
        "word_around": 0.63,
        "window_2": 1.55,
        "window_4": 3.4,
        "bigram": 1.0,
        "answers": 1.7,
        "back_2": 0.12,
        "speaker": 2.6,
        "speaker_asks": -0.6,
        "subject": 1.1,
        "date": 4.2,
        "when": 1.9,
        "opens": 0.75,
    }
)
WEIGHTS: Mapping[Kind, Mapping[str, float]] = MappingProxyType(
    {"spelling": SPELLING_WEIGHTS, "static": STATIC_WEIGHTS, "contextual": CONTEXTUAL_WEIGHTS}
)
# What is left to go by without the question's vector.
LEXICAL_WEIGHTS: Mapping[str, float] = MappingProxyType({n: w for n, w in SPELLING_WEIGHTS.items() if n != "dense"})
