"""What a thing is: hover."""

from __future__ import annotations

import re
from typing import Final

from kaged.base import JsonValue
from kaged.toolbox.lsp.positions import SourceText, Spot, TextSpan
from kaged.toolbox.lsp.question import LspCall
from kaged.tools.errors import InvalidToolParams

_FENCE: Final = re.compile(r"```[^\n]*\n(?P<code>.*?)\n?```", re.DOTALL)
_RULE: Final = re.compile(r"^\s*(?:---+|\*\*\*+)\s*$", re.MULTILINE)
_WORD: Final = re.compile(r"\w+")
MAX_CHARS: Final = 20_000
_NOTHING: Final[JsonValue] = {"content": None, "documentation": None, "range": None}


async def describe_symbol(question: LspCall) -> JsonValue:
    """Answer hover."""
    bridge = question.bridge
    async with bridge.ready(question.path, question.session_id) as ready:
        if not ready.server.capabilities.offers("hoverProvider", "textDocument/hover"):
            raise InvalidToolParams.of_field("action", "unsupported by server")
        spot = question.spot(ready.file.source)
        answer = await bridge.ask(ready.server, "textDocument/hover", question.document(ready))
        if not isinstance(answer, dict):
            return _NOTHING
        content, documentation = split_markup(markup_text(answer.get("contents")))
        if content is None:
            return _NOTHING
        try:
            span = ready.file.source.span_from_server(answer.get("range"), ready.server.encoding)
        except TypeError:
            span = word_at(ready.file.source, spot)
    return {"content": content, "documentation": documentation, "range": span.as_json()}


def markup_text(contents: JsonValue) -> str:
    """Join MarkupContent, MarkedString and lists of them into one Markdown text."""
    match contents:
        case str():
            return contents
        case {"language": str(language), "value": str(value)}:
            return f"```{language}\n{value}\n```"
        case {"value": str(value)}:
            return value
        case list():
            return "\n\n".join(filter(None, map(markup_text, contents)))
        case _:
            return ""


def split_markup(text: str) -> tuple[str | None, str | None]:
    """Return the signature (the first code block, or paragraph) and the rest."""
    text = text.strip()[:MAX_CHARS]
    if not text:
        return None, None
    fence = _FENCE.search(text)
    if fence is not None:
        content, rest = fence["code"], text[: fence.start()] + text[fence.end() :]
    else:
        content, _, rest = text.partition("\n\n")
    rest = _RULE.sub("", rest).strip()
    return content.strip(), rest or None


def word_at(source: SourceText, spot: Spot) -> TextSpan:
    """Return the word at a position, for servers that name no range."""
    for found in _WORD.finditer(source.line(spot.line)):
        if found.start() <= spot.character <= found.end():
            return TextSpan(Spot(spot.line, found.start()), Spot(spot.line, found.end()))
    return TextSpan(spot, spot)
