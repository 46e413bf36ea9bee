"""Filter, merge and whole chains of plugins beside the published framework, in one run.

Run it alone with `python benchmarks/bench_extensions.py`; `run()` returns the suite's rows. The
published package lives in an environment of its own under build/, made on the first run. Both sides
take turns, round by round, so that a busy machine hits both alike; the best round counts.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
import timeit
import tracemalloc
import types
from typing import Any

from kaged.base import Ids, SystemClock
from kaged.pipeline import (
    Extensions,
    GlobalContext,
    HttpExtension,
    Pipeline,
    Plugin,
    PluginConfig,
    ToolPreInvokePayload,
    ToolPreInvokeResult,
    filter_extensions,
    merge_extensions,
)
from scoreboard import Row, at_least, at_most, peer_environment, row, show
from scoreboard.peers import PINS

PEER_VERSION = (PINS / "cpex.txt").read_text(encoding="utf-8").strip().partition("==")[2]
Rounds = dict[str, list[float]]
RATIO_TARGET = 8.0
IMPORT_TARGET_MS = 120.0
GROWTH_TARGET_KIB = 64.0
INVOCATIONS = 100_000
ROUNDS = 60
FUNCTION_CALLS = 1000
CHAIN_CALLS = {1: 400, 5: 100, 10: 50}
"""Calls per round by number of plugins: each about four milliseconds of ours, so that what the
other side left in the caches does not decide."""
# What is timed of the functions; both sides run the very same lines.
STATEMENTS = {
    "merge nothing": "merge_extensions(ext, filter_extensions(ext, caps), caps, 'p')",
    "merge header": "filter_extensions(ext, caps); merge_extensions(ext, header, caps, 'p')",
    "merge both": "filter_extensions(ext, caps); merge_extensions(ext, both, caps, 'p')",
    "read all": "dict(filter_extensions(ext, caps))",
}

CAPABILITIES = [
    "read_roles",
    "append_labels",
    "write_headers",
    "read_agent",
    "append_delegation",
]
# The same data for both sides, as plain values.
SLOTS: dict[str, Any] = {
    "request": {"environment": "production", "request_id": "req-1", "trace_id": "t"},
    "agent": {"session_id": "s", "agent_id": "a", "turn": 3},
    "http": {"headers": {"authorization": "Bearer x", "x-tenant": "t"}},
    "security": {
        "labels": ["pii"],
        "classification": "internal",
        "subject": {"id": "u", "type": "user", "roles": ["r"], "claims": {"iss": "idp"}},
        "objects": {"db": {"permissions": ["db.read"]}},
        "data": {"db": {"apply_labels": ["pii"]}},
    },
    "delegation": {
        "chain": [{"subject_id": "u", "subject_type": "user", "timestamp": "2026-01-01T00:00:00Z"}],
        "depth": 1,
    },
    "mcp": {"tool": {"name": "t", "input_schema": {"type": "object"}}},
    "completion": {
        "model": "m",
        "tokens": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    },
    "provenance": {"source": "user", "message_id": "m1"},
    "llm": {"model_id": "m", "capabilities": ["tools"]},
    "framework": {"framework": "f", "metadata": {"k": 1}},
    "meta": {"tags": ["a"], "properties": {"k": "v"}},
    "custom": {"a": 1},
}
PEER_PROGRAM = """
import asyncio, json, logging, sys, time, timeit
logging.disable(logging.CRITICAL)
from cpex.framework import (GlobalContext, Plugin, PluginConfig, TenantPluginManager,
                            ToolPreInvokePayload, ToolPreInvokeResult)
from cpex.framework.extensions import Extensions, HttpExtension
from cpex.framework.extensions.tiers import filter_extensions, merge_extensions
from cpex.framework.models import Config
sys.modules["bench_peer"] = sys.modules["__main__"]
setup = json.loads(sys.stdin.readline())
ext = Extensions.model_validate(setup["slots"])
caps = frozenset(setup["capabilities"])

class Looks(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        return ToolPreInvokeResult(continue_processing=True)

class Edits(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        return ToolPreInvokeResult(
            continue_processing=True,
            modified_extensions=extensions.model_copy(update={"custom": {"by": self.name}}))

view = filter_extensions(ext, caps)
http = HttpExtension(headers={**view.http.headers, "x": "y"})
header = view.model_copy(update={"http": http})
both = header.model_copy(update={"custom": {"b": 2}})

async def main():
    managers = {}
    for name in ("Looks", "Edits"):
        for count in (1, 5, 10):
            manager = TenantPluginManager(Config(plugins=[
                PluginConfig(name=f"p{n}", kind=f"bench_peer.{name}", hooks=["tool_pre_invoke"],
                             capabilities=sorted(caps)) for n in range(count)]))
            await manager.initialize()
            assert manager.plugin_count == count
            managers[f"{name} {count}"] = manager
    timers = {what: timeit.Timer(line, globals=globals())
              for what, line in setup["lines"].items()}
    payload = ToolPreInvokePayload(name="t", args={"a": 1})
    print("ready", flush=True)
    for _ in sys.stdin:
        found = {}
        for what, timer in timers.items():
            found[what] = timer.timeit(setup["function_calls"]) / setup["function_calls"]
        for what, manager in managers.items():
            start = time.perf_counter()
            calls = setup["chain_calls"][what.split()[1]]
            for _ in range(calls):
                await manager.invoke_hook(
                    "tool_pre_invoke", payload, GlobalContext(request_id="r"), extensions=ext)
            found[what] = (time.perf_counter() - start) / calls
        print(json.dumps(found), flush=True)

asyncio.run(main())
"""


class Looks(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: Any, extensions: Any) -> Any:
        return ToolPreInvokeResult(continue_processing=True)


class Edits(Plugin):
    async def tool_pre_invoke(self, payload: Any, context: Any, extensions: Any) -> Any:
        return ToolPreInvokeResult(
            continue_processing=True,
            modified_extensions=extensions.model_copy(update={"custom": {"by": self.name}}),
        )


def run() -> list[Row]:
    python = str(peer_environment("cpex"))
    ours, theirs = asyncio.run(_turns(python))
    rows = [
        _ratio("filter + merge, 12 full slots, nothing changed", ours, theirs, "merge nothing"),
        _ratio("filter + merge, 12 full slots, a header added", ours, theirs, "merge header"),
        _ratio("filter + merge, header and custom changed", ours, theirs, "merge both", None),
    ]
    rows.append(_ratio("filter, then every slot is read", ours, theirs, "read all", target=None))
    for count in (1, 5, 10):
        rows.append(_ratio(f"{count} plugins that allow", ours, theirs, f"Looks {count}"))
        rows.append(
            _ratio(f"{count} plugins that change custom, merged", ours, theirs, f"Edits {count}")
        )
    rows.append(_imports("kaged.pipeline", python, IMPORT_TARGET_MS))
    rows.append(_imports("kaged.pipeline.pipeline", python, None))
    rows.append(asyncio.run(_growth()))
    return rows


async def _pipeline(plugin: type[Plugin], count: int) -> Pipeline:
    clock = SystemClock()
    pipeline = Pipeline(clock, Ids(clock))
    own = types.ModuleType("bench_own")  # however this file was loaded
    own.__dict__.update(globals())
    sys.modules["bench_own"] = own
    report = await pipeline.load_configs(
        PluginConfig(
            name=f"p{n}",
            kind=f"bench_own.{plugin.__name__}",
            hooks=["tool_pre_invoke"],
            capabilities=frozenset(CAPABILITIES),
        )
        for n in range(count)
    )
    assert report.in_force, report.problems
    return pipeline


async def _turns(python: str) -> tuple[Rounds, Rounds]:
    ext = Extensions.model_validate(SLOTS)
    caps = frozenset(CAPABILITIES)
    view = filter_extensions(ext, caps)
    assert view is not None
    assert view.http is not None
    http = HttpExtension(headers={**view.http.headers, "x": "y"})
    header = view.model_copy(update={"http": http})
    both = header.model_copy(update={"custom": {"b": 2}})
    names = {
        "filter_extensions": filter_extensions,
        "merge_extensions": merge_extensions,
        "ext": ext,
        "caps": caps,
        "header": header,
        "both": both,
    }
    timers = {what: timeit.Timer(line, globals=names) for what, line in STATEMENTS.items()}
    pipelines = {
        f"{plugin.__name__} {count}": await _pipeline(plugin, count)
        for plugin in (Looks, Edits)
        for count in (1, 5, 10)
    }
    payload = ToolPreInvokePayload(name="t", args={"a": 1})

    async def own_round() -> dict[str, float]:
        found: dict[str, float] = {}
        for what, timer in timers.items():
            found[what] = timer.timeit(FUNCTION_CALLS) / FUNCTION_CALLS
        for what, pipeline in pipelines.items():
            start = time.perf_counter()
            calls = CHAIN_CALLS[int(what.split()[1])]
            for _ in range(calls):
                await pipeline.invoke_hook(
                    "tool_pre_invoke", payload, GlobalContext(request_id="r"), extensions=ext
                )
            found[what] = (time.perf_counter() - start) / calls
        return found

    peer = subprocess.Popen(
        [python, "-c", PEER_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert peer.stdin is not None
    assert peer.stdout is not None
    setup = {
        "slots": SLOTS,
        "capabilities": CAPABILITIES,
        "lines": STATEMENTS,
        "function_calls": FUNCTION_CALLS,
        "chain_calls": CHAIN_CALLS,
    }
    print(json.dumps(setup), file=peer.stdin, flush=True)
    assert peer.stdout.readline().strip() == "ready"
    ours: Rounds = {}
    theirs: Rounds = {}
    for _ in range(ROUNDS):
        _keep(ours, await own_round())
        print("go", file=peer.stdin, flush=True)
        _keep(theirs, json.loads(peer.stdout.readline()))
    peer.stdin.close()
    peer.wait(60)
    for pipeline in pipelines.values():
        await pipeline.close()
    return ours, theirs


def _keep(kept: Rounds, found: dict[str, float]) -> None:
    for what, seconds in found.items():
        kept.setdefault(what, []).append(seconds)


def _imports(module: str, python: str, target: float | None) -> Row:
    """Time a bare import in fresh interpreters, in turns; the best of each counts."""
    own: list[float] = []
    peer: list[float] = []
    script = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    for _ in range(5):
        for where, name, kept in (
            (sys.executable, module, own),
            (python, "cpex.framework", peer),
        ):
            done = subprocess.run(
                [where, "-c", script.format(name)], capture_output=True, text=True, check=True
            )
            kept.append(float(done.stdout))
    ms = min(own) * 1000
    return row(
        f"import {module}",
        ms,
        "ms",
        against=f"import cpex.framework {PEER_VERSION}",
        peer=min(peer) * 1000,
        target=None if target is None else at_most(target, ms, "ms"),
        samples=own,
    )


async def _growth() -> Row:
    """Run 100,000 calls of two editing plugins and see what stays in memory."""
    pipeline = await _pipeline(Edits, 2)
    ext = Extensions.model_validate(SLOTS)
    payload = ToolPreInvokePayload(name="t", args={"a": 1})

    async def calls(count: int) -> None:
        for number in range(count):
            context = GlobalContext(request_id=str(number))
            await pipeline.invoke_hook("tool_pre_invoke", payload, context, extensions=ext)

    await calls(1000)
    gc.collect()
    tracemalloc.start()
    await calls(100)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    await calls(INVOCATIONS)
    gc.collect()
    grown = (tracemalloc.get_traced_memory()[0] - before) / 1024
    tracemalloc.stop()
    await pipeline.close()
    return row(
        f"memory kept after {INVOCATIONS:,} invocations",
        grown,
        "KiB",
        target=at_most(GROWTH_TARGET_KIB, grown, "KiB"),
    )


def _ratio(
    work: str, ours: Rounds, theirs: Rounds, key: str, target: float | None = RATIO_TARGET
) -> Row:
    mine, other = min(ours[key]) * 1e6, min(theirs[key]) * 1e6
    return row(
        work,
        mine,
        "µs",
        against=f"cpex {PEER_VERSION}",
        peer=other,
        target=None if target is None else at_least(target, other / mine, "x faster"),
        samples=ours[key],
    )


if __name__ == "__main__":
    show(run())
