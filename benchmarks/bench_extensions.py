"""Filter, merge and whole chains of plugins beside the published framework, in one run.

Run it alone with `python benchmarks/bench_extensions.py`; `run()` returns the suite's rows. The
published package lives in an environment of its own under build/, made on the first run. Both sides
take turns, round by round, and CPU time is taken, so that a busy machine hits both alike; the best
round counts.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
import timeit
import tracemalloc
import types
from pathlib import Path
from typing import Any

from kaged.audit import Redactor
from kaged.base import Ids, SystemClock
from kaged.pipeline import (
    DelegationHop,
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
from kaged.pipeline.origin import CallOrigin
from kaged.pipeline.trace_log import TraceLog
from kaged.store import Store, sqlite_url
from scoreboard import Row, Target, at_least, at_most, peer_environment, row, show
from scoreboard.peers import PINS, ROOT

PEER_VERSION = (PINS / "cpex.txt").read_text(encoding="utf-8").strip().partition("==")[2]
Rounds = dict[str, list[float]]
RATIO_TARGET = 8.0
IMPORT_TARGET_MS = 120.0
PIPELINE_IMPORT_TARGET_MS = 200.0
GROWTH_TARGET_KIB = 64.0
MERGE_FOUR_TARGET_US = 5.0
READ_TARGET = 1.0
TRACED_STEPS = 10
TRACED_CALLS = 50
INVOCATIONS = 100_000
ROUNDS = 60
FUNCTION_CALLS = 1000
ROUND_S = 4e-3
"""How long one chain runs in a round, about: what the other side left in the caches must not
decide."""
# What is timed of the functions; both sides run the very same lines.
STATEMENTS = {
    "merge nothing": "merge_extensions(ext, filter_extensions(ext, caps), caps, 'p')",
    "merge header": "filter_extensions(ext, caps); merge_extensions(ext, header, caps, 'p')",
    "merge both": "filter_extensions(ext, caps); merge_extensions(ext, both, caps, 'p')",
    "merge four": "filter_extensions(ext, caps); merge_extensions(ext, four, caps, 'p')",
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
# The policies of both sides, the very same lines.
POLICIES = """
import asyncio

class Looks(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        return ToolPreInvokeResult(continue_processing=True)

class Edits(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        return ToolPreInvokeResult(
            continue_processing=True,
            modified_extensions=extensions.model_copy(update={"custom": {"by": self.name}}))

class Labels(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        security = extensions.security
        labels = security.labels | {self.name}
        return ToolPreInvokeResult(
            continue_processing=True,
            modified_extensions=extensions.model_copy(
                update={"security": security.model_copy(update={"labels": labels})}))

class Reads(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        ext = extensions
        seen = (ext.request.environment, ext.agent.agent_id, ext.http.headers,
                ext.security.classification, ext.mcp.tool.name, ext.meta.tags)
        return ToolPreInvokeResult(continue_processing=all(seen))

class Rewrites(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        args = {**payload.args, "by": self.name}
        return ToolPreInvokeResult(modified_payload=payload.model_copy(update={"args": args}))

class Waits(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        await asyncio.sleep(0)
        return ToolPreInvokeResult(continue_processing=True)
"""
PUBLISHED = {
    "cpex_pii_filter.pii_filter.PIIFilterPlugin": {"detect_email": True, "detect_ssn": True},
    "cpex_secrets_detection.secrets_detection.SecretsDetectionPlugin": {},
    "cpex_rate_limiter.rate_limiter.RateLimiterPlugin": {"by_user": "1000000/s"},
    "cpex_sql_sanitizer.sql_sanitizer.SQLSanitizerPlugin": {},
}
"""Plugins of other people with their settings; `scripts/setup --tests` puts them below build/."""
PUBLISHED_FOLDER = ROOT / "build" / "policy-plugins"


def _chain(kind: str, count: int, args: Any = None, mode: str = "sequential") -> dict[str, Any]:
    plugins = [{"kind": kind, "name": f"p{n}", "mode": mode, "config": {}} for n in range(count)]
    return {"plugins": plugins, "args": {"a": 1} if args is None else args}


def _published(args: dict[str, str]) -> dict[str, Any]:
    plugins = [
        {"kind": kind, "name": f"p{n}", "mode": "sequential", "config": config}
        for n, (kind, config) in enumerate(PUBLISHED.items())
    ]
    return {"plugins": plugins, "args": args}


WORKING_TARGET = 5.0
CHAINS: dict[str, tuple[float | None, dict[str, Any]]] = {
    **{f"{n} plugins that allow": (RATIO_TARGET, _chain("Looks", n)) for n in (1, 5, 10)},
    **{
        f"{n} plugins that change custom, merged": (RATIO_TARGET, _chain("Edits", n))
        for n in (1, 5, 10)
    },
    "10 plugins that append a label": (WORKING_TARGET, _chain("Labels", 10)),
    "5 plugins that read six slots": (WORKING_TARGET, _chain("Reads", 5)),
    "5 plugins that edit the payload": (WORKING_TARGET, _chain("Rewrites", 5)),
    "1 plugin that suspends once": (WORKING_TARGET, _chain("Waits", 1)),
    "5 plugins in concurrent mode": (WORKING_TARGET, _chain("Looks", 5, mode="concurrent")),
    "1 plugin, 500 KB of arguments": (WORKING_TARGET, _chain("Looks", 1, {"a": "x" * 500_000})),
    "4 published plugins, small clean call": (RATIO_TARGET, _published({"path": "a.txt"})),
    "4 published plugins, personal data": (
        WORKING_TARGET,
        _published({"text": "to bob@example.com, ssn 123-45-6789"}),
    ),
    "4 published plugins, 2 KB clean": (WORKING_TARGET, _published({"text": "some words " * 186})),
}
"""What is timed of whole chains: target, and the plugins and arguments of both sides."""

PEER_PROGRAM = """
import asyncio, json, logging, sys, time, timeit
logging.disable(logging.CRITICAL)
from cpex.framework import (GlobalContext, Plugin, PluginConfig, TenantPluginManager,
                            ToolPreInvokePayload, ToolPreInvokeResult)
from cpex.framework.extensions import DelegationHop, Extensions, HttpExtension
from cpex.framework.extensions.tiers import filter_extensions, merge_extensions
from cpex.framework.models import Config
sys.modules["bench_policies"] = sys.modules["__main__"]
setup = json.loads(sys.stdin.readline())
exec(setup["policies"])
sys.path.append(setup["published"])
ext = Extensions.model_validate(setup["slots"])
caps = frozenset(setup["capabilities"])
view = filter_extensions(ext, caps)
http = HttpExtension(headers={**view.http.headers, "x": "y"})
header = view.model_copy(update={"http": http})
both = header.model_copy(update={"custom": {"b": 2}})
labels = view.security.model_copy(update={"labels": view.security.labels | {"mine"}})
hop = DelegationHop(subject_id="v", subject_type="agent")
four = both.model_copy(
    update={"security": labels, "delegation": view.delegation.with_new_hop(hop)})

async def main():
    chains = {}
    for what, chain in setup["chains"].items():
        manager = TenantPluginManager(Config(plugins=[
            PluginConfig(hooks=["tool_pre_invoke"], capabilities=sorted(caps), **plugin)
            for plugin in chain["plugins"]]))
        await manager.initialize()
        assert manager.plugin_count == len(chain["plugins"])
        chains[what] = manager, ToolPreInvokePayload(name="t", args=chain["args"])
    timers = {what: timeit.Timer(line, timer=time.thread_time, globals=globals())
              for what, line in setup["lines"].items()}
    print("ready", flush=True)
    for line in sys.stdin:
        found = {}
        for what, timer in timers.items():
            found[what] = timer.timeit(setup["function_calls"]) / setup["function_calls"]
        for what, calls in json.loads(line).items():
            manager, payload = chains[what]
            start = time.thread_time()
            for _ in range(calls):
                await manager.invoke_hook(
                    "tool_pre_invoke", payload, GlobalContext(request_id="r"), extensions=ext)
            found[what] = (time.thread_time() - start) / calls
        print(json.dumps(found), flush=True)

asyncio.run(main())
"""


def run() -> list[Row]:
    python = str(peer_environment("cpex"))
    ours, theirs = asyncio.run(_turns(python))
    four_us = min(ours["merge four"]) * 1e6
    four = at_most(MERGE_FOUR_TARGET_US, four_us, "µs")
    rows = [
        _ratio("filter + merge, 12 full slots, nothing changed", ours, theirs, "merge nothing"),
        _ratio("filter + merge, 12 full slots, a header added", ours, theirs, "merge header"),
        _ratio("filter + merge, header and custom changed", ours, theirs, "merge both", None),
        _ratio("filter + merge, four slots changed", ours, theirs, "merge four", four),
    ]
    rows.append(_ratio("filter, then every slot is read", ours, theirs, "read all", READ_TARGET))
    for what, (target, _) in CHAINS.items():
        rows.append(_ratio(what, ours, theirs, what, target))
    rows.append(_imports("kaged.pipeline", python, IMPORT_TARGET_MS))
    rows.append(_imports("kaged.pipeline.pipeline", python, PIPELINE_IMPORT_TARGET_MS))
    rows.append(asyncio.run(_growth()))
    rows += asyncio.run(_traced())
    return rows


async def _pipeline(chain: dict[str, Any]) -> Pipeline:
    clock = SystemClock()
    pipeline = Pipeline(clock, Ids(clock))
    policies = types.ModuleType("bench_policies")
    policies.__dict__.update(Plugin=Plugin, ToolPreInvokeResult=ToolPreInvokeResult)
    exec(POLICIES, policies.__dict__)  # as the other side does
    sys.modules["bench_policies"] = policies
    report = await pipeline.load_configs(
        PluginConfig.model_validate(
            {"hooks": ["tool_pre_invoke"], "capabilities": CAPABILITIES, **_dotted(plugin)}
        )
        for plugin in chain["plugins"]
    )
    assert report.in_force, report.problems
    return pipeline


def _dotted(plugin: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with the full name of its class; those of `POLICIES` are short."""
    kind = plugin["kind"]
    return {**plugin, "kind": kind if "." in kind else f"bench_policies.{kind}"}


async def _turns(python: str) -> tuple[Rounds, Rounds]:
    ext = Extensions.model_validate(SLOTS)
    caps = frozenset(CAPABILITIES)
    view = filter_extensions(ext, caps)
    assert view is not None
    assert view.http is not None
    http = HttpExtension(headers={**view.http.headers, "x": "y"})
    header = view.model_copy(update={"http": http})
    both = header.model_copy(update={"custom": {"b": 2}})
    assert view.security is not None
    assert view.delegation is not None
    labels = view.security.model_copy(update={"labels": view.security.labels | {"mine"}})
    hop = DelegationHop(subject_id="v", subject_type="agent")
    four = both.model_copy(
        update={"security": labels, "delegation": view.delegation.with_new_hop(hop)}
    )
    names = {
        "filter_extensions": filter_extensions,
        "merge_extensions": merge_extensions,
        "ext": ext,
        "caps": caps,
        "header": header,
        "both": both,
        "four": four,
    }
    timers = {
        what: timeit.Timer(line, timer=time.thread_time, globals=names)
        for what, line in STATEMENTS.items()
    }
    sys.path.append(str(PUBLISHED_FOLDER))
    chains = {
        what: (await _pipeline(chain), ToolPreInvokePayload(name="t", args=chain["args"]))
        for what, (_, chain) in CHAINS.items()
    }
    calls_of = dict.fromkeys(chains, 20)

    async def own_round() -> dict[str, float]:
        found: dict[str, float] = {}
        for what, timer in timers.items():
            found[what] = timer.timeit(FUNCTION_CALLS) / FUNCTION_CALLS
        for what, (pipeline, payload) in chains.items():
            start = time.thread_time()
            for _ in range(calls_of[what]):
                await pipeline.invoke_hook(
                    "tool_pre_invoke", payload, GlobalContext(request_id="r"), extensions=ext
                )
            found[what] = (time.thread_time() - start) / calls_of[what]
        return found

    first = await own_round()
    calls_of.update({what: max(5, round(ROUND_S / first[what])) for what in chains})
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
        "chains": {
            what: {**chain, "plugins": [_dotted(plugin) for plugin in chain["plugins"]]}
            for what, (_, chain) in CHAINS.items()
        },
        "policies": POLICIES,
        "published": str(PUBLISHED_FOLDER),
    }
    print(json.dumps(setup), file=peer.stdin, flush=True)
    assert peer.stdout.readline().strip() == "ready"
    ours: Rounds = {}
    theirs: Rounds = {}
    for _ in range(ROUNDS):
        _keep(ours, await own_round())
        print(json.dumps(calls_of), file=peer.stdin, flush=True)
        _keep(theirs, json.loads(peer.stdout.readline()))
    peer.stdin.close()
    peer.wait(60)
    for pipeline, _ in chains.values():
        await pipeline.close()
    return ours, theirs


def _keep(kept: Rounds, found: dict[str, float]) -> None:
    for what, seconds in found.items():
        kept.setdefault(what, []).append(seconds)


def _imports(module: str, python: str, target: float | None) -> Row:
    """Take the CPU time of a bare import in fresh interpreters, in turns; the best counts."""
    own: list[float] = []
    peer: list[float] = []
    script = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
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
    pipeline = await _pipeline(_chain("Edits", 2))
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


async def _traced() -> list[Row]:
    """Time what a trace adds to each step of a call, and with the writing, which comes later."""
    clock = SystemClock()
    ids = Ids(clock)
    with tempfile.TemporaryDirectory(prefix="kaged-bench-traces-") as folder:
        store = await Store.open(
            sqlite_url(Path(folder) / "kaged.db"),
            clock=clock,
            ids=ids,
            backup_dir=Path(folder) / "backups",
        )
        log = TraceLog(store, Redactor(), clock)
        pipeline = await _pipeline(_chain("Reads", TRACED_STEPS))
        ext = Extensions.model_validate(SLOTS)
        payload = ToolPreInvokePayload(name="t", args={"a": 1})

        async def call_s(tracing: TraceLog | None) -> tuple[float, float]:
            calling, working = time.thread_time(), time.process_time()
            for number in range(TRACED_CALLS):
                origin = CallOrigin(request_id=f"r{number}", at_ms=0)
                await pipeline.invoke_hook(
                    "tool_pre_invoke",
                    payload,
                    GlobalContext(request_id="r"),
                    extensions=ext,
                    tracer=None if tracing is None else tracing.of_call(origin),
                )
            called = time.thread_time()
            await log.written()
            steps = TRACED_CALLS * TRACED_STEPS
            return (called - calling) / steps, (time.process_time() - working) / steps

        plain: list[tuple[float, float]] = []
        traced: list[tuple[float, float]] = []
        for _ in range(ROUNDS // 4):
            plain.append(await call_s(None))
            traced.append(await call_s(log))
        await pipeline.close()
        await log.close()
        await store.close()
    rows: list[Row] = []
    for place, (what, target) in enumerate(
        (("a traced step, in its call", 8.0), ("a traced step, with its writing", 50.0))
    ):
        base = min(one[place] for one in plain)
        samples = [one[place] - base for one in traced]
        us = min(samples) * 1e6
        rows.append(row(what, us, "µs", target=at_most(target, us, "µs"), samples=samples))
    return rows


def _ratio(
    work: str, ours: Rounds, theirs: Rounds, key: str, target: float | Target | None = RATIO_TARGET
) -> Row:
    mine, other = min(ours[key]) * 1e6, min(theirs[key]) * 1e6
    if isinstance(target, (int, float)):
        target = at_least(target, other / mine, "x faster")
    return row(
        work,
        mine,
        "µs",
        against=f"cpex {PEER_VERSION}",
        peer=other,
        target=target,
        samples=ours[key],
    )


if __name__ == "__main__":
    show(run())
