"""The key tables of the reference pages, drawn from the types, so that no key goes undocumented."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kaged.config.cageblock import CageBlock, CageShape
from kaged.config.containers import Later, ListOf, NamedValues, Wrapper
from kaged.config.daemonconfig import CONFIG_SHAPE
from kaged.config.knobs import KNOB_TYPES
from kaged.config.knobshapes import KnobShape
from kaged.config.localconfig import LOCAL_SHAPE
from kaged.config.manifest import MANIFEST_SHAPE
from kaged.config.project import PROJECT_SHAPE, ProjectTitle
from kaged.config.records import Key, RecordShape, keys_of
from kaged.config.secret import Secret
from kaged.config.sections import Sections

BEGIN: Final = "<!-- generated: keys, by kaged.config.reference -->"
END: Final = "<!-- end of generated keys -->"

PAGES: Final[Mapping[str, RecordShape[Any]]] = MappingProxyType(
    {
        "project-file.md": PROJECT_SHAPE,
        "plugin-manifest.md": MANIFEST_SHAPE,
        "config-toml.md": CONFIG_SHAPE,
        "local-toml.md": LOCAL_SHAPE,
    }
)
"""The reference pages and the shape each one describes."""


def render_keys(page: str) -> str:
    """Render the key tables of a page as Markdown, with the marks around them."""
    parts = [BEGIN, ""]
    for title, cls in _records(PAGES[page]):
        doc = (cls.__doc__ or "").strip().splitlines()[0]
        parts += [f"### {title}", "", doc, "", "| Key | Value | Default | What it does |"]
        parts.append("|---|---|---|---|")
        parts += [_row(item) for item in keys_of(cls)]
        parts.append("")
    parts.append(END)
    return "\n".join(parts)


def record_classes(page: str) -> tuple[type[Any], ...]:
    """Return the types whose keys a page lists, in its order."""
    return tuple(cls for _, cls in _records(PAGES[page]))


def rewrite_pages(folder: Path) -> tuple[str, ...]:
    """Put fresh tables into the pages of a folder; return the names of those that changed."""
    changed: list[str] = []
    for page in PAGES:
        path = folder / page
        text = path.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        tail = rest.partition(END)[2]
        fresh = head + render_keys(page) + tail
        if fresh != text:
            path.write_text(fresh, encoding="utf-8")
            changed.append(page)
    return tuple(changed)


def _row(item: Key) -> str:
    names = ", ".join(f"`{name}`" for name in (item.name, *item.aliases))
    default = "**required**" if item.required else _default(item.default)
    return f"| {names} | {_cell(item.shape.words())} | {default} | {_cell(item.doc)} |"


def _default(value: object) -> str:
    if value is None or value in ((), "") or isinstance(value, (Mapping, Sections, Secret)):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, StrEnum):
        return f"`{value.value}`"
    if isinstance(value, tuple):
        return ", ".join(_default(inner) for inner in value)
    if isinstance(value, (int, float, str)):
        return f"`{value}`"
    text = str(value)
    return f"`{text}`" if "(" not in text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _records(top: RecordShape[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Walk the records of a document in order, each once, under the name of its place."""
    seen: set[type[Any]] = set()
    waiting: list[tuple[str, type[Any]]] = [("Top level", top.cls)]
    while waiting:
        title, cls = waiting.pop(0)
        if cls in seen:
            continue
        seen.add(cls)
        yield title, cls
        prefix = "" if title == "Top level" else f"{title.strip('`')}."
        below = [
            (f"`{prefix}{item.name}{suffix}`", inner)
            for item in keys_of(cls)
            for suffix, inner in _inside(item.shape)
        ]
        waiting[0:0] = below


def _inside(shape: Any) -> Iterator[tuple[str, type[Any]]]:
    """Find the records that a shape is made of."""
    if isinstance(shape, RecordShape):
        yield "", shape.cls
    elif isinstance(shape, CageShape):
        yield "", CageBlock
    elif isinstance(shape, KnobShape):
        for name, cls in KNOB_TYPES.items():
            yield f" (type {name})", cls
    elif isinstance(shape, Wrapper):
        yield from _inside(shape.inner)
    elif isinstance(shape, Later):
        yield from _inside(shape.find())
    elif isinstance(shape, ListOf):
        yield from ((f"[]{suffix}", cls) for suffix, cls in _inside(shape.item))
    elif isinstance(shape, NamedValues):
        yield from ((f".<name>{suffix}", cls) for suffix, cls in _inside(shape.value))
    elif type(shape).__name__ == "_TitleShape":
        yield "", ProjectTitle
