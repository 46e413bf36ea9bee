"""`LspCall`: one call of `code.lsp`, its bridge, and what its caller may see of the answers."""

from __future__ import annotations

import os
import re
from dataclasses import field
from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.lsp.bridge import LspBridge, Ready
from kaged.toolbox.lsp.positions import (
    Encoding,
    SourceText,
    Spot,
    from_units,
    from_uri,
    position_numbers,
    range_ends,
)
from kaged.toolbox.lsp.server import LspServer
from kaged.tools import InvalidToolParams, ToolInvocation
from kaged.workspace import ProjectPath

PREVIEW_CHARS: Final = 500
MAX_LOCATIONS: Final = 2000
_NTH: Final = re.compile(r"(?P<text>.+)#(?P<nth>[1-9][0-9]{0,3})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LspLocation:
    """Where an answer points to: a path of the server's, and a range in it."""

    path: str
    range: JsonValue


@dataclass(slots=True)
class LspCall:
    """One call on its way through an action."""

    call: ToolInvocation
    bridge: LspBridge
    _texts: dict[str, SourceText | None] = field(default_factory=dict)
    _seen: dict[str, ProjectPath | None] = field(default_factory=dict)

    # -- what was asked --------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        """The session on whose account restarts are counted."""
        return self.call.context.session_id

    @property
    def caged(self) -> bool:
        """Whether the caller has a cage."""
        return self.call.policy is not None

    @property
    def path(self) -> ProjectPath:
        """The path of the question; `check` has seen to it that there is one."""
        return self.call.paths[0]

    def text(self, name: str) -> str:
        """Return a text parameter; empty when it was left out."""
        value = self.call.args.get(name)
        return value if isinstance(value, str) else ""

    def spot(self, source: SourceText) -> Spot:
        """Return the position that was asked about, by `character` or by `symbol`.

        Raises InvalidToolParams.
        """
        line = cast("int", self.call.args["line"])
        if line > source.line_count:
            raise InvalidToolParams.of_field(
                "line", f"is {line}, and the file has {source.line_count} lines"
            )
        character = self.call.args.get("character")
        if isinstance(character, int):
            return Spot(line, character)
        return Spot(line, column_of(source.line(line), self.text("symbol")))

    def document(self, ready: Ready) -> JsonObject:
        """Return the parameters that every position question begins with."""
        spot = self.spot(ready.file.source)
        return {
            "textDocument": {"uri": ready.file.uri},
            "position": ready.file.source.to_server(spot, ready.server.encoding),
        }

    # -- what may be seen ------------------------------------------------------------------------

    def inside(self, path: str) -> ProjectPath | None:
        """Return a server's path when the caller may see its content; None when not."""
        if path not in self._seen:
            found = self.bridge.project_path(path)
            seen = found is not None and self.call.readable(found.resolved)
            self._seen[path] = found if seen else None
        return self._seen[path]

    def hidden(self, path: str, line: int) -> JsonObject:
        """Describe a place whose content the caller may not see: where it is and no more."""
        found = self.bridge.project_path(path)
        if found is not None:
            return {"path": found.relative, "line": line, "outside_cage": True}
        if self.caged:
            return {"path": os.path.basename(path), "line": line, "outside_cage": True}  # noqa: PTH119 - a text
        return {"path": path, "line": line, "outside_project": True}

    async def source(self, server: LspServer, path: ProjectPath) -> SourceText | None:
        """Return the text of a file that the caller may see, read once per call."""
        if path.resolved not in self._texts:
            self._texts.update(await self.bridge.texts_of(server, [path]))
        return self._texts[path.resolved]

    async def show_all(self, server: LspServer, places: list[LspLocation]) -> list[JsonValue]:
        """Describe places as the server lists them; what makes no sense is left out."""
        places = places[:MAX_LOCATIONS]
        seen = {found.resolved: found for one in places if (found := self.inside(one.path))}
        missing = [found for path, found in seen.items() if path not in self._texts]
        if missing:
            self._texts.update(await self.bridge.texts_of(server, missing))
        shown = (self._show(server.encoding, place) for place in places)
        return [one for one in shown if one is not None]

    def _show(self, encoding: Encoding, place: LspLocation) -> JsonObject | None:
        """Describe a place whose file's text has been read, as far as the caller may see it."""
        try:
            start, _ = range_ends(place.range)
            line, units = position_numbers(start)
        except TypeError:
            return None
        seen = self.inside(place.path)
        if seen is None:
            return self.hidden(place.path, line + 1)
        source = self._texts.get(seen.resolved)
        if source is None:
            return {"path": seen.relative, "line": line + 1, "character": 0, "preview": ""}
        text = source.line(line + 1)
        return {
            "path": seen.relative,
            "line": line + 1,
            "character": from_units(text, units, encoding),
            "preview": text[:PREVIEW_CHARS],
        }


def column_of(line: str, symbol: str) -> int:
    """Find a symbol on a line; `name#2` means the second. Raises InvalidToolParams."""
    numbered = _NTH.fullmatch(symbol)
    text, nth = (numbered["text"], int(numbered["nth"])) if numbered else (symbol, 0)
    word = re.compile(
        rf"(?<!\w){re.escape(text)}(?!\w)" if text.isidentifier() else re.escape(text)
    )
    found = [match.start() for match in word.finditer(line)]
    if not found:
        raise InvalidToolParams.of_field("symbol", f"{text!r} is not on this line")
    if nth > len(found):
        raise InvalidToolParams.of_field(
            "symbol", f"{text!r} is on this line {len(found)} times only"
        )
    if nth == 0 and len(found) > 1:
        raise InvalidToolParams.of_field(
            "symbol",
            f"{text!r} is on this line {len(found)} times",
            fix=f"name one of them: {text}#1 … {text}#{len(found)}",
        )
    return found[max(nth - 1, 0)]


def places_in(answer: JsonValue) -> list[LspLocation]:
    """Read Location, Location[] and LocationLink[]; what is none of them is left out."""
    entries = answer if isinstance(answer, list) else [answer]
    found: list[LspLocation] = []
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        path = from_uri(entry.get("uri", entry.get("targetUri")))
        where = entry.get("range", entry.get("targetSelectionRange", entry.get("targetRange")))
        if path is not None and where is not None:
            found.append(LspLocation(path, where))
    return found
