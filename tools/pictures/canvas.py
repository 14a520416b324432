"""SVG pictures of boxes, lines and text on a card, in the light or dark colours of the reader's system."""

from html import escape

STYLE = """
  text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink) }
  .small { font-size: 12px; fill: var(--soft) }
  .strong { font-weight: 600 }
  .code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12.5px }
  .card { fill: var(--card) }
  .box { fill: var(--box); stroke: var(--line) }
  .group { fill: none; stroke: var(--accent); stroke-dasharray: 5 4 }
  .line { stroke: var(--soft); stroke-width: 1.5; fill: none }
  .a { fill: var(--a) } .b { fill: var(--b) } .c { fill: var(--c) }
  .arrow { fill: var(--soft) }
  svg { --card: #ffffff; --box: #f3f5f9; --line: #b9c2d0; --ink: #1c2430; --soft: #566173; --accent: #3d5afe;
        --a: #3d5afe; --b: #0f9d75; --c: #c2185b }
  @media (prefers-color-scheme: dark) {
    svg { --card: #161b22; --box: #21283a; --line: #4b566b; --ink: #e8ecf3; --soft: #a3aec0; --accent: #8c9eff;
          --a: #8c9eff; --b: #4dd0a5; --c: #f48fb1 }
  }
"""


class Canvas:
    """A picture. `description`: text for screen readers."""

    def __init__(self, width: int, height: int, description: str) -> None:
        self._size, self._description = (width, height), description
        self._drawn: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        self._drawn.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box") -> None:
        """Draw a box with centred lines of text; the first is the name."""
        self._drawn.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" class="{kind}"/>')
        top = y + height / 2 + 5 - 9 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 18 * number, line, "small" if number else "strong", "middle")

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        self._drawn.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" class="{kind}"/>')

    def dot(self, x: float, y: float, kind: str) -> None:
        self._drawn.append(f'<circle cx="{x:g}" cy="{y:g}" r="6" class="{kind}"/>')

    def line(self, *points: tuple[float, float]) -> None:
        self._drawn.append(f'<path d="{_path(points)}" class="line"/>')

    def arrow(self, *points: tuple[float, float]) -> None:
        """Draw a line with an arrowhead at its end, which must be horizontal or vertical."""
        self.line(*points)
        (x0, y0), (x, y) = points[-2:]
        across, down = (x > x0) - (x < x0), (y > y0) - (y < y0)
        left, right = (
            (x - 8 * across + 4 * down, y - 8 * down + 4 * across),
            (
                x - 8 * across - 4 * down,
                y - 8 * down - 4 * across,
            ),
        )
        self._drawn.append(f'<path d="{_path(((x, y), left, right))} Z" class="arrow"/>')

    def svg(self) -> str:
        width, height = self._size
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
        card = f'<rect width="{width}" height="{height}" rx="10" class="card"/>'
        drawn = "\n".join([card, *self._drawn])
        return f"{head}\n<title>{escape(self._description)}</title>\n<style>{STYLE}</style>\n{drawn}\n</svg>\n"


def _path(points: tuple[tuple[float, float], ...]) -> str:
    return "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
