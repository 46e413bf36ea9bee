"""A small SVG writer: text, lines and boxes in colours that suit light and dark pages."""

from __future__ import annotations

from xml.sax.saxutils import escape

# Colours are classes, so that one file serves both; the page's own setting decides.
_STYLE = """\
text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#24292f}
.small{font-size:11px;fill:#57606a}
.title{font-size:15px;font-weight:600}
.head{font-weight:600}
.end{text-anchor:end}
.middle{text-anchor:middle}
.grid{stroke:#d0d7de;stroke-width:1}
.limit{stroke:#24292f;stroke-width:1.5;stroke-dasharray:4 3}
.met{fill:#2f81b7}.missed{fill:#d1242f}
.bad{fill:#d1242f;font-weight:600}
.line{fill:none;stroke-width:2}
.c0{stroke:#2f81b7}.c1{stroke:#bf6a02}.c2{stroke:#1a7f5a}.c3{stroke:#8250df}
.c4{stroke:#bf3989}.c5{stroke:#6e7781}
.d0{fill:#2f81b7}.d1{fill:#bf6a02}.d2{fill:#1a7f5a}.d3{fill:#8250df}.d4{fill:#bf3989}.d5{fill:#6e7781}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.small{fill:#9198a1}
.grid{stroke:#3d444d}.limit{stroke:#e6edf3}
.met{fill:#4aa3df}.missed{fill:#f85149}.bad{fill:#f85149}
.c0{stroke:#4aa3df}.c1{stroke:#e3a008}.c2{stroke:#3fb98a}.c3{stroke:#b392f0}
.c4{stroke:#f778ba}.c5{stroke:#9198a1}
.d0{fill:#4aa3df}.d1{fill:#e3a008}.d2{fill:#3fb98a}.d3{fill:#b392f0}.d4{fill:#f778ba}.d5{fill:#9198a1}
}"""
COLOURS = 6


class Drawing:
    """A picture that grows mark by mark."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._marks: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """Write a line of text with its foot at `y`."""
        self._marks.append(f'<text x="{x:g}" y="{y:g}"{_class(kind)}>{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a straight line."""
        self._marks.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"{_class(kind)}/>'
        )

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draw a filled box."""
        self._marks.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 1))}" height="{_n(height)}"'
            f' rx="2"{_class(kind)}/>'
        )

    def path(self, points: list[tuple[float, float]], colour: int) -> None:
        """Draw a line through points, with a dot on each."""
        colour %= COLOURS
        joined = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._marks.append(f'<polyline points="{joined}" class="line c{colour}"/>')
        self._marks += [
            f'<circle cx="{_n(x)}" cy="{_n(y)}" r="3" class="d{colour}"/>' for x, y in points
        ]

    def finish(self) -> str:
        """Return the whole file."""
        width, height = self._size
        return "\n".join(
            [
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
                    f' width="{width:g}" height="{height:g}" role="img">'
                ),
                f"<title>{escape(self._title)}</title>",
                f"<style>{_STYLE}</style>",
                *self._marks,
                "</svg>\n",
            ]
        )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


__all__ = ["COLOURS", "Drawing"]
