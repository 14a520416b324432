"""What an embedding service is given to read."""

from hypothesis import given
from hypothesis import strategies as st

from recallflow.enrichment import EMBEDDED_BYTES, text_to_embed


@given(st.text(), st.integers(1, 3_000))
def test_long_text_is_cut_at_a_whole_character(text: str, times: int) -> None:
    content = text * times
    read = text_to_embed(None, content)
    assert content.startswith(read)
    size = len(read.encode())
    assert size <= EMBEDDED_BYTES
    assert read == content or size > EMBEDDED_BYTES - 4
