"""Fitted weights of updates.py. Refit them with `python -m benchmarks.updates --fit`; do not edit them by hand."""

from collections.abc import Mapping

BIAS = -16.2
WEIGHTS: Mapping[str, float] = {
    "alike": 0.0981, "alike_spread": 1.38, "nearest": -0.117, "shared": 4.08, "shared_unasked": 0.884,
    "fits_least": 1.36, "older_fits": 0.325, "newer_fits": -0.159, "change": 0.393, "ended": 0.586, "corrected": 4.24,
    "restored": 1.44, "added": 0, "older_changes": 0.112, "same_author": 8.66, "other_author_own": -0.55,
    "person": -0.31, "others": -0.448, "name": -0.816, "own": -0.365, "numbers_differ": 1.01, "older_rank": 2.29,
    "newer_rank": 1.43, "ranks": 1.49, "older_behind": -2.9, "signals_apart": -0.997, "changes_alike": -1.39,
    "changes_fits": 0.803, "changes_shared": 0.45, "changes_nearest": 0.814, "corrected_shared": -5.89,
    "restored_shared": 3.37, "numbers_shared": -1.3, "rank_nearest": -1.51, "attribute": 0.65, "attribute_asked": 0.473,
    "changes_attribute": -0.252, "changes_asked": 0.74, "asked_fits": -1.95, "asked_ranks": -1.44, "follows": 0.309,
    "follows_corrected": 3.2, "follows_shared": 1.87,
}  # fmt: skip
