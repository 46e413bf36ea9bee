"""Whether a rename misses a reference: files that it leaves alone are asked what their words mean.

A server that has not read the whole project yet proposes an edit that looks complete. So where the
old name stands in files outside the edit, the server is asked for its definition there. If that is
what is being renamed, the edit would break the file. If it has no answer, the caller should look.
"""

from __future__ import annotations

import asyncio
import io
import re
import tokenize
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.lsp.bridge import Ready
from kaged.toolbox.lsp.edits import EditPlan, located
from kaged.toolbox.lsp.errors import LspRequestFailed, RenameNotPossible
from kaged.toolbox.lsp.filesync import MAX_FILE_BYTES, decoded
from kaged.toolbox.lsp.positions import Encoding, SourceText, Spot
from kaged.toolbox.lsp.question import PREVIEW_CHARS, LspCall, places_in
from kaged.toolbox.lsp.server import LspServer
from kaged.workspace import PathRefused, ProjectPath
from kaged.workspace.errors import FileMissing, FileTooLarge, FileUnreadable, WrongKind

CHECK_S: Final = 20.0
MAX_FILES: Final = 60
MAX_PLACES: Final = 8
"""How many files are looked into, and how many places of each; imports come first."""

MAX_SHOWN: Final = 20
PYTHON: Final = "python"
_DEFINITION: Final = "textDocument/definition"
_OWN_NAMES: Final = frozenset({"typescript", "javascript"})
"""Languages whose files may give what they import names of their own that look like the old one."""
_IMPORT: Final = re.compile(r"\b(?:import|from|include|use|using)\b")


async def require_complete(
    question: LspCall,
    ready: Ready,
    where: JsonObject,
    plan: EditPlan,
    targets: dict[str, ProjectPath],
) -> list[JsonValue]:
    """Return places in other files where the old name stands and nobody can say what it means.

    These are given for Python only, whose names can be told from comments. When there are more
    files than can be asked about in time, those that were are enough: a server that has not read
    the project knows none of them.

    Raises RenameNotPossible when the edit leaves out a file that means what is renamed.
    """
    server, source = ready.server, ready.file.source
    spot = source.from_server(where["position"], server.encoding)
    name = _word_at(source, spot)
    if name is None or server.language in _OWN_NAMES:
        return []
    if not server.capabilities.offers("definitionProvider", _DEFINITION):
        return []
    others = await _others(question, server, name, plan)
    if not others or await _keeps_an_alias(question, server, name, plan, targets):
        return []
    asked = {key: where[key] for key in ("textDocument", "position")}
    meant = {(ready.file.path, spot.line), *await _definitions(question, server, asked)}
    missed: list[ProjectPath] = []
    unknown: list[JsonValue] = []
    try:
        async with asyncio.timeout(CHECK_S):
            for path, text in others:
                uses, unsure = await _look(question, server, path, SourceText(text), name, meant)
                missed += [path] if uses else []
                unknown += unsure
    except TimeoutError:
        pass
    if missed:
        raise _incomplete(question, server, name, missed)
    return unknown[:MAX_SHOWN]


async def _others(
    question: LspCall, server: LspServer, name: str, plan: EditPlan
) -> list[tuple[ProjectPath, str]]:
    """Return files of the server's language outside the edit that hold the name, with texts."""
    bridge = question.bridge
    listed = await bridge.files_with(name)
    found = sorted(
        path
        for path in listed
        if path not in plan.files
        and (language := bridge.languages.of(path)) is not None
        and language.language == server.language
    )
    step = -(-len(found) // MAX_FILES) or 1
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")

    def read() -> list[tuple[ProjectPath, str]]:
        texts: list[tuple[ProjectPath, str]] = []
        for one in found[::step]:
            path = bridge.project_path(one)
            text = None if path is None else _text_of(question, path)
            if path is not None and text is not None and word.search(text):
                texts.append((path, text))
        return texts

    return await bridge.workspace.threads.run(read)


def _text_of(question: LspCall, path: ProjectPath) -> str | None:
    try:
        return decoded(question.bridge.workspace.read_bytes(path, MAX_FILE_BYTES).data)
    except (FileMissing, FileTooLarge, FileUnreadable, PathRefused, WrongKind):
        return None


async def _keeps_an_alias(
    question: LspCall,
    server: LspServer,
    name: str,
    plan: EditPlan,
    targets: dict[str, ProjectPath],
) -> bool:
    """Return whether a line keeps the old name as a second one, as in `import New as Old`."""
    kept = re.compile(rf"\bas\s+{re.escape(name)}(?!\w)")
    texts = await question.bridge.texts_of(server, list(targets.values()))
    for path, edits in plan.files.items():
        source = texts.get(targets[path].resolved)
        for edit in [] if source is None else located(source, edits, server.encoding):
            line = source.line(edit.spot.line) if source is not None else ""
            if kept.search(line, edit.spot.character + edit.end - edit.start):
                return True
    return False


async def _look(
    question: LspCall,
    server: LspServer,
    path: ProjectPath,
    source: SourceText,
    name: str,
    meant: set[tuple[str, int]],
) -> tuple[bool, list[JsonValue]]:
    """Return whether a file uses what is renamed, and where the server cannot resolve it."""
    language = question.bridge.languages.of(path.resolved)
    was_open = path.resolved in server.files
    file = server.show(
        path.resolved, server.language if language is None else language.language_id, source.text
    )
    unknown: list[JsonValue] = []
    try:
        for spot in _places(source, name, server.language):
            asked: JsonObject = {
                "textDocument": {"uri": file.uri},
                "position": source.to_server(spot, server.encoding),
            }
            found = await _definitions(question, server, asked)
            if meant & found:
                return True, []
            if not found and server.language == PYTHON:
                unknown.append(_shown(question, path, source, spot.line))
    finally:
        if not was_open:
            server.hide(path.resolved)
    return False, unknown


def _shown(question: LspCall, path: ProjectPath, source: SourceText, line: int) -> JsonObject:
    if question.inside(path.resolved) is None:
        return question.hidden(path.resolved, line)
    preview = source.line(line).strip()[:PREVIEW_CHARS]
    return {"path": path.relative, "line": line, "preview": preview}


async def _definitions(
    question: LspCall, server: LspServer, asked: JsonObject
) -> set[tuple[str, int]]:
    """Return files and lines in which the server finds a definition; none when it refuses."""
    try:
        answer = await server.request(_DEFINITION, asked, question.bridge.limit_s)
    except LspRequestFailed:
        return set()
    source = SourceText("")
    found: set[tuple[str, int]] = set()
    for place in places_in(answer):
        try:
            start = source.span_from_server(place.range, Encoding.UTF32).start
        except TypeError:
            continue
        found.add((place.path, start.line))
    return found


def _places(source: SourceText, name: str, language: str) -> list[Spot]:
    """Return where a name stands in a text: a few places, those in imports first."""
    spots = _names_in_python(source.text, name) if language == PYTHON else None
    if spots is None:
        word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
        lines = range(1, source.line_count + 1)
        found = ((number, word.search(source.line(number))) for number in lines)
        spots = [Spot(number, one.start()) for number, one in found if one is not None]
    return sorted(spots, key=lambda spot: not _IMPORT.search(source.line(spot.line)))[:MAX_PLACES]


def _names_in_python(text: str, name: str) -> list[Spot] | None:
    """Return where a name stands outside strings and comments; None when the text is no Python."""
    try:
        return [
            Spot(token.start[0], token.start[1])
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.NAME and token.string == name
        ]
    except (tokenize.TokenError, SyntaxError):
        return None


def _word_at(source: SourceText, spot: Spot) -> str | None:
    line = source.line(spot.line)
    for found in re.finditer(r"\w+", line):
        if found.start() <= spot.character <= found.end():
            return found[0] if found[0].isidentifier() else None
    return None


def _incomplete(
    question: LspCall, server: LspServer, name: str, missed: list[ProjectPath]
) -> RenameNotPossible:
    shown = [
        path.relative
        if question.inside(path.resolved)
        else str(question.hidden(path.resolved, 1)["path"])
        for path in missed
    ]
    listed: list[JsonValue] = [*shown[:MAX_SHOWN]]
    return RenameNotPossible(
        f"the {server.language} language server left {name!r} as it is in files that use it: "
        f"{', '.join(shown[:MAX_SHOWN])}; nothing was changed",
        fix="try again in a moment; where the server's settings exclude these files, change them "
        "with edit.ast or edit.text",
        detail={"missed": listed, "count": len(shown)},
    )
