"""Index forms of a text: stems by passage, and flags."""

from collections.abc import Sequence

from recallflow.language import Reading, stems
from recallflow.operators.passages import Passage, own_texts
from recallflow.state.rows import BLANK, ENDS_ASKING, HAS_QUESTION, LANGUAGE_SHIFT, PASSAGE_END, TELLS_TIME


def entry_stems(text: str, among: Sequence[Passage], reading: Reading) -> str:
    """Return the stems of a text with these passages."""
    if len(among) == 1:
        return " ".join(reading.stems)
    return PASSAGE_END.join(" ".join(stems(part, reading.language)) for part in own_texts(text, among))


def flags_of(text: str, reading: Reading) -> int:
    """Return the flags of a text's index entry."""
    if not text or text.isspace():
        return BLANK
    asks = (HAS_QUESTION if reading.asks else 0) | (ENDS_ASKING if reading.ends_asking else 0)
    return asks | (TELLS_TIME if reading.tells_time else 0) | reading.language << LANGUAGE_SHIFT
