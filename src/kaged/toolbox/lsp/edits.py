"""`WorkspaceEdit`: what a server wants changed, read into plans before a single byte moves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.lsp.errors import RenameNotPossible
from kaged.toolbox.lsp.positions import Encoding, SourceText, Spot, from_uri

MAX_FILES: Final = 5000
MAX_EDITS: Final = 100_000


@dataclass(frozen=True, slots=True)
class RawEdit:
    """One replacement as the server wrote it; its range is read when the text is at hand."""

    range: JsonValue
    new_text: str


@dataclass(frozen=True, slots=True)
class TextEdit:
    """One replacement in a text, by offsets."""

    start: int
    end: int
    new_text: str
    spot: Spot


@dataclass(slots=True)
class EditPlan:
    """All changes of one answer, by absolute path; `others` are operations that are no edits."""

    files: dict[str, list[RawEdit]] = field(default_factory=dict)
    moved: list[tuple[str, str]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # URIs that are no files


def parse_workspace_edit(value: JsonValue) -> EditPlan:
    """Read `changes` or `documentChanges`. Raises RenameNotPossible."""
    plan = EditPlan()
    if value is None:
        return plan
    if not isinstance(value, dict):
        raise _malformed("the edit is no object")
    changes = value.get("documentChanges")
    if isinstance(changes, list):
        for change in changes:
            _document_change(plan, change)
    elif isinstance(value.get("changes"), dict):
        for uri, edits in cast("JsonObject", value["changes"]).items():
            _add(plan, uri, edits)
    if len(plan.files) > MAX_FILES or sum(map(len, plan.files.values())) > MAX_EDITS:
        raise _malformed("the edit is too large")
    return plan


def apply_edits(source: SourceText, edits: Iterable[TextEdit]) -> str:
    """Make all replacements at once; those at one place keep their order.

    Raises RenameNotPossible when two of them overlap.
    """
    ordered = sorted(enumerate(edits), key=lambda one: (one[1].start, one[1].end, one[0]))
    parts: list[str] = []
    at = 0
    for _, edit in ordered:
        if edit.start < at:
            raise _malformed("two edits of one file overlap")
        parts += [source.text[at : edit.start], edit.new_text]
        at = edit.end
    return "".join((*parts, source.text[at:]))


def located(source: SourceText, edits: Iterable[RawEdit], encoding: Encoding) -> list[TextEdit]:
    """Find where edits belong in a text; exact duplicates count once. Raises RenameNotPossible."""
    found: dict[tuple[int, int, str], TextEdit] = {}
    for edit in edits:
        try:
            span = source.span_from_server(edit.range, encoding)
        except TypeError as error:
            raise _malformed(str(error)) from error
        start, end = source.offset(span.start), source.offset(span.end)
        if end < start:
            raise _malformed("a range ends before it starts")
        one = TextEdit(start, end, edit.new_text, span.start)
        # Two equal insertions at one place are two; two equal replacements are one said twice.
        key = (start, end, edit.new_text) if start != end else (start, end, f"{len(found)}")
        found.setdefault(key, one)
    return list(found.values())


def _document_change(plan: EditPlan, change: JsonValue) -> None:
    if not isinstance(change, dict):
        raise _malformed("a document change is no object")
    kind = change.get("kind")
    if kind is None:
        document = change.get("textDocument")
        uri = document.get("uri") if isinstance(document, dict) else None
        _add(plan, uri, change.get("edits"))
    elif kind == "rename":
        old, new = from_uri(change.get("oldUri")), from_uri(change.get("newUri"))
        if old is None or new is None:
            raise _malformed("a file operation names no files")
        plan.moved.append((old, new))
    else:
        raise _malformed(f"it would {str(kind)[:20]} files, which a rename may not do")


def _add(plan: EditPlan, uri: JsonValue, edits: JsonValue) -> None:
    path = from_uri(uri)
    if path is None:
        plan.unreadable.append(str(uri)[:200])
        return
    if not isinstance(edits, list):
        raise _malformed("a file's edits are no list")
    kept = plan.files.setdefault(path, [])
    for edit in edits:
        if not isinstance(edit, dict):
            raise _malformed("an edit is no object")
        text = edit.get("newText")
        if not isinstance(text, str) or "snippet" in edit:
            raise _malformed("an edit has no plain text")
        kept.append(RawEdit(edit.get("range"), text))


def _malformed(why: str) -> RenameNotPossible:
    return RenameNotPossible(
        f"the language server's edit cannot be applied: {why}; nothing was changed",
        fix="change the files with edit.text instead",
    )
