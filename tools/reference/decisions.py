"""The list of decision records, from their titles."""

from pathlib import Path

from tools.reference import markdown

FOLDER = Path(__file__).parents[2] / "docs" / "internals" / "decisions"
INTRODUCTION = (
    "From this page you can find out why recallflow is built as it is. Each record has context, decision and "
    "consequences, with the measurements."
)


def page() -> str:
    """Return the page that links all records."""
    records = sorted(path for path in FOLDER.glob("*.md") if path.name[0].isdigit())
    titles = [(path.name, path.read_text().partition("\n")[0].removeprefix("# ")) for path in records]
    return markdown.page("Decisions", INTRODUCTION, "\n".join(f"- [{title}]({name})" for name, title in titles))
