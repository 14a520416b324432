"""What the pages of docs/ show of Python and of the shell works as it stands, and prints what they say.

Pages with a broker in them are run in tests/kafka/test_pages.py."""

from pathlib import Path

import pytest

from tests.pages import DOCS, FENCED, RUN, blocks, run

pytestmark = pytest.mark.examples
LOCAL = (
    "concepts.md",
    "from-mem0.md",
    "from-zep.md",
    "how-to/assistant.md",
    "how-to/backfill.md",
    "how-to/evaluation.md",
    "python.md",
)
WITH_A_BROKER = ("quickstart.md", "how-to/chat-platform.md", "how-to/runbook.md")
WITHOUT_BLOCKS = ("index.md", "how-to/kubernetes.md", "comparison.md", "figures.md")


@pytest.mark.parametrize("page", LOCAL)
def test_what_a_page_shows_works(page: str, tmp_path: Path) -> None:
    ran = 0
    for block in blocks(page):
        assert block.language != "sh"
        printed = run(block.language, block.code, tmp_path)
        assert [line for line in block.shows if line not in printed] == [], printed
        ran += 1
    assert ran > 0


def test_every_page_of_the_guide_is_run() -> None:
    guide = {path.relative_to(DOCS).as_posix() for path in (*(DOCS / "how-to").glob("*.md"), *DOCS.glob("index.md"))}
    assert guide <= {*LOCAL, *WITH_A_BROKER, *WITHOUT_BLOCKS}
    for page in WITHOUT_BLOCKS:
        assert [language for language, _ in FENCED.findall((DOCS / page).read_text()) if language in RUN] == [], page
