"""Bun's inspector as a debug adapter, with a planned inspector in place of Bun."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

from kaged.base import JsonObject
from kaged.toolbox.dap.dialects import BunDialect
from kaged.toolbox.dap.inspector import InspectorAdapter
from kaged.toolbox.dap.inspector_scripts import SourceMap
from requirements import requirement

# Line 0 of the running code was written on line 4, line 1 on line 5.
MAPPINGS = "AAIA;AACA"


class PlannedInspector:
    is_open = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, JsonObject] = {}

    async def request(
        self, command: str, arguments: Any = None, limit_s: float = 0, taking: Any = None
    ) -> JsonObject:
        del limit_s, taking
        if command != "inspector":
            return {}
        self.asked.append((arguments["method"], arguments["params"]))
        return self.answers.get(arguments["method"], {})

    async def close(self) -> None:
        return None


def test_places_go_through_the_source_map() -> None:
    found = SourceMap.of_mappings(MAPPINGS)
    assert found is not None
    assert found.running(5) == (1, 0)
    assert found.running(0) == (0, 0)
    assert found.running(9) is None
    assert found.written(1, 7) == (5, 0)
    assert SourceMap.of_mappings("!") is None
    assert SourceMap.of_url("data:application/json;base64,!!") is None


@requirement("AT-DAP-12")
async def test_bun_is_translated_without_bun() -> None:
    events: list[tuple[str, JsonObject]] = []
    engine = PlannedInspector()
    adapter = InspectorAdapter(BunDialect(), lambda name, body: events.append((name, body)))
    adapter.use(cast("Any", engine))
    await adapter.request("launch", {"program": "/p/a.ts", "cwd": "/p"})
    await adapter.request("configurationDone")
    methods = [method for method, _ in engine.asked]
    assert methods[-2:] == ["Debugger.pause", "Inspector.initialized"]
    text = json.dumps({"version": 3, "sources": ["a.ts"], "mappings": MAPPINGS})
    url = "data:application/json;base64," + base64.b64encode(text.encode()).decode()
    parsed: JsonObject = {"scriptId": "2", "url": "/p/a.ts", "sourceMapURL": url}
    adapter.heard("inspector", {"method": "Debugger.scriptParsed", "params": parsed})
    engine.answers["Debugger.setBreakpointByUrl"] = {
        "breakpointId": "b",
        "locations": [{"scriptId": "2", "lineNumber": 1, "columnNumber": 0}],
    }
    wanted: JsonObject = {"line": 6, "condition": "x"}
    said = await adapter.request(
        "setBreakpoints", {"source": {"path": "/p/a.ts"}, "breakpoints": [wanted]}
    )
    assert said["breakpoints"] == [
        {"id": 1, "verified": True, "line": 6, "source": {"path": "/p/a.ts"}}
    ]
    _, sent = engine.asked[-1]
    assert (sent["lineNumber"], sent["options"]) == (1, {"condition": "(x\n)"})
    place: JsonObject = {"scriptId": "2", "lineNumber": 1, "columnNumber": 0}
    paused: JsonObject = {
        "reason": "Breakpoint",
        "data": {"breakpointId": "b"},
        "callFrames": [{"callFrameId": "f", "functionName": "g", "location": place}],
    }
    adapter.heard("inspector", {"method": "Debugger.paused", "params": paused})
    name, body = events[-1]
    assert (name, body["reason"], body["hitBreakpointIds"]) == ("stopped", "breakpoint", [1])
    shown: Any = await adapter.request("stackTrace", {"levels": 1})
    assert shown["stackFrames"][0]["line"] == 6
    await adapter.close()
