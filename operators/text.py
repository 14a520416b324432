"""Text as the index keeps it: what it does, as flags."""

from recallflow.language import Reading
from recallflow.state.rows import ENDS_ASKING, HAS_QUESTION, LANGUAGE_SHIFT, TELLS_TIME


def flags_of(reading: Reading) -> int:
    """The flags of a text's index entry."""
    asks = (HAS_QUESTION if reading.asks else 0) | (ENDS_ASKING if reading.ends_asking else 0)
    return asks | (TELLS_TIME if reading.tells_time else 0) | reading.language << LANGUAGE_SHIFT
