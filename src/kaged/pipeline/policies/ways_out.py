"""Whether a call can reach the network, as the host and its server say."""

from __future__ import annotations

from collections.abc import Iterable

from kaged.pipeline.policies.texts import compile_names
from kaged.pipeline.slots import Extensions

NET_ANNOTATION = "net"
"""Annotation of a tool by the host: whether it can reach the network."""

_OPEN_WORLD = "openWorldHint"


class WaysOut:
    """Knows the tools that count as a way out; `unknown` says it of those nobody knows."""

    def __init__(
        self, tools: Iterable[str], except_tools: Iterable[str], *, unknown: bool = True
    ) -> None:
        self._named = compile_names(tools)
        self._excused = compile_names(except_tools)
        self._unknown = unknown

    def __call__(self, name: str, extensions: Extensions | None) -> bool:
        """Return whether a call of this tool can reach the network."""
        if self._excused(name):
            return False
        if self._named(name):
            return True
        mcp = None if extensions is None else extensions.mcp
        tool = None if mcp is None else mcp.tool
        if tool is None or tool.name != name:
            return self._unknown
        for annotation in (NET_ANNOTATION, _OPEN_WORLD):
            stated = tool.annotations.get(annotation)
            if isinstance(stated, bool):
                return stated
        return self._unknown
