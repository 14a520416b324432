"""The list of decisions, from their titles."""

from pathlib import Path

from tools.reference import markdown

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
TOLD = "What was decided while building, why, and what it costs, with the measurements. The newest stand last."


def page() -> str:
    """The page that links them all."""
    found = sorted(path for path in FOLDER.glob("*.md") if path.name[0].isdigit())
    titles = [(path.name, path.read_text().partition("\n")[0].removeprefix("# ")) for path in found]
    return markdown.page("Decisions", TOLD, "\n".join(f"- [{title}]({name})" for name, title in titles))
