"""How well memories' event times fit the dates of a question."""

from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.operators.recall.question import DateMention

NEAR_DAYS = 2


def date_column(created_ms: npt.NDArray[np.int64], dates: tuple[DateMention, ...]) -> npt.NDArray[np.floating[Any]]:
    """How well each event time (UTC) fits the best of the dates: 2 for the month and within 2 days, 1 for the month,
    0.3 for a year alone."""
    days = created_ms.astype("datetime64[ms]").astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    year = months.astype("datetime64[Y]").astype(np.int64) + 1970
    month = months.astype(np.int64) % 12 + 1
    day = (days - months.astype("datetime64[D]")).astype(np.int64) + 1
    best = np.zeros(len(created_ms))
    for date in dates:
        fits = np.ones(len(created_ms), np.bool_) if date.year is None else year == date.year
        if date.month is None:
            best = np.maximum(best, 0.3 * fits)
            continue
        fits &= month == date.month
        near = fits & (np.abs(day - date.day) <= NEAR_DAYS) if date.day is not None else np.zeros_like(fits)
        best = np.maximum(best, 1.0 * fits + near)
    return best
