from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from kaged.base import Ids, ManualClock
from kaged.pipeline import (
    GlobalContext,
    Pipeline,
    PipelineNotReady,
    Plugin,
    PluginConfig,
    PluginResult,
    ToolPostInvokePayload,
    ToolPreInvokePayload,
)
from kaged.pipeline import pipeline as pipeline_module
from kaged.pipeline.kinds import TrustedClass, load_class, resolve_kind
from raising import raises_code
from unit.pipeline.lab import CALL, HOOK, ClassKind, Lab, entry

GOOD = """\
plugins:
  - name: tagger
    kind: fakes.pipeline_plugins.Tagger
    hooks: [tool_pre_invoke]
"""
FAULTY = """\
plugins:
  - name: tagger
    kind: fakes.pipeline_plugins.Tagger
    hooks: [tool_pre_invoke]
    capabilities: [read_header]
  - name: broken
    kind: fakes.pipeline_plugins.RefusesToStart
    hooks: [tool_post_invoke]
  - name: sound
    kind: fakes.pipeline_plugins.Tagger
    hooks: [tool_pre_invoke]
"""


def make(**options: Any) -> Pipeline:
    clock = ManualClock()
    return Pipeline(clock, Ids(clock), **options)


def write(folder: Path, text: str) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(text, encoding="utf-8")
    return path


async def call(pipeline: Pipeline, hook: str = HOOK) -> PluginResult[Any]:
    payload = CALL if hook == HOOK else ToolPostInvokePayload(name="t", result=1)
    result, _ = await pipeline.invoke_hook(hook, payload, GlobalContext("r"))
    return result


async def test_a_sound_file_is_put_in_force(tmp_path: Path) -> None:
    pipeline = make()
    report = await pipeline.load_file(write(tmp_path, GOOD))
    assert report.in_force
    assert report.plugins == ("tagger",)
    assert pipeline.status.sound
    assert pipeline.has_hooks_for(HOOK)
    assert not pipeline.has_hooks_for("tool_post_invoke")
    assert (await call(pipeline)).metadata == {"tagged": "tagger"}
    await pipeline.close()


async def test_a_faulty_file_is_reported_whole_and_its_hooks_are_refused(tmp_path: Path) -> None:
    pipeline = make()
    path = write(tmp_path, FAULTY)
    report = await pipeline.load_file(path)

    assert not report.in_force
    problems = {problem.line: str(problem) for problem in report.problems}
    assert "read_header" in problems[5]
    assert "broken" in problems[6]
    assert "will not" in problems[6]
    status = pipeline.status
    assert not status.sound
    assert status.refused_hooks == ("tool_post_invoke", "tool_pre_invoke")
    for hook in (HOOK, "tool_post_invoke"):
        with pytest.raises(PipelineNotReady, match=r"pipeline\.yaml") as caught:
            await call(pipeline, hook)
        assert caught.value.fix is not None
    other, _ = await pipeline.invoke_hook("prompt_pre_fetch", CALL, GlobalContext("r"))
    assert other.continue_processing

    lenient = make()
    report = await lenient.load_file(path, lenient=True)
    assert report.in_force
    assert report.plugins == ("sound",)
    assert len(report.problems) == 2
    assert (await call(lenient)).metadata == {"tagged": "sound"}

    await pipeline.load_file(write(tmp_path, GOOD))
    assert pipeline.status.sound
    assert (await call(pipeline)).metadata == {"tagged": "tagger"}
    report = await pipeline.load_file(write(tmp_path, FAULTY))
    assert not report.in_force
    assert not pipeline.status.sound
    assert pipeline.status.plugins == ("tagger",)
    assert (await call(pipeline)).metadata == {"tagged": "tagger"}
    await pipeline.close()


async def test_a_second_faulty_file_changes_what_is_refused(tmp_path: Path) -> None:
    pipeline = make()
    await pipeline.load_file(write(tmp_path, FAULTY))
    await pipeline.load_file(
        write(tmp_path, "plugins:\n  - {name: p, kind: wasm, hooks: [agent_pre_invoke]}\n")
    )
    assert pipeline.status.refused_hooks == ("agent_pre_invoke",)


async def test_a_file_that_cannot_be_read_refuses_everything(tmp_path: Path) -> None:
    missing = make()
    report = await missing.load_file(tmp_path / "none.yaml")
    assert not report.in_force
    assert missing.status.refuses_all
    assert missing.has_hooks_for("anything")
    with pytest.raises(PipelineNotReady):
        await call(missing)
    binary = tmp_path / "pipeline.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert not (await make().load_file(binary)).in_force


async def test_nothing_loaded_means_nothing_refused() -> None:
    pipeline = make()
    assert (await call(pipeline)).continue_processing
    assert pipeline.status.file is None
    assert pipeline.plans == {}


async def test_every_hook_carries_extensions_and_a_configured_hook_needs_a_method(
    tmp_path: Path,
) -> None:
    pipeline = make()
    text = GOOD.replace("[tool_pre_invoke]", "\n      - tool_pre_invoke\n      - tool_pre_invok")
    report = await pipeline.load_file(write(tmp_path, text))
    (problem,) = report.problems
    assert problem.line == 6
    assert "tool_pre_invok'" in problem.message
    assert not report.in_force

    seen: list[str] = []

    class Any_(Plugin):  # noqa: N801 - a plugin for any hook
        async def tool_pre_invoke(self, payload: Any, context: Any, extensions: Any) -> None:
            seen.append(f"pre {extensions.custom}")

        async def tool_post_invoke(self, payload: Any, context: Any, extensions: Any) -> None:
            seen.append(f"post {extensions.custom}")

        async def made_up(self, payload: Any, context: Any, extensions: Any) -> None:
            seen.append(f"own {extensions.custom}")

    from kaged.pipeline import Extensions

    lab = await Lab.of(entry(Any_, hooks=["tool_pre_invoke", "tool_post_invoke", "made_up"]))
    ext = Extensions(custom={"a": 1})
    await lab.call(extensions=ext)
    await lab.call(
        ToolPostInvokePayload(name="t", result=1), hook="tool_post_invoke", extensions=ext
    )
    await lab.call(CALL, hook="made_up", extensions=ext)
    assert seen == ["pre {'a': 1}", "post {'a': 1}", "own {'a': 1}"]


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("wasm", "unknown kind"),
        ("os.path", "part of the system"),
        ("subprocess.Popen", "part of the system"),
        ("http.server.HTTPServer", "part of the system"),
        ("no.such.module.Class", "cannot be imported"),
        ("fakes.pipeline_plugins.NoSuchClass", "not a Plugin class"),
        ("fakes.pipeline_plugins.NotAPlugin", "not a Plugin class"),
        ("fakes.pipeline_plugins.RefusesToStart", "will not"),
    ],
)
async def test_a_kind_that_cannot_be_loaded_says_why(kind: str, word: str) -> None:
    pipeline = make()
    report = await pipeline.load_configs([PluginConfig(name="p", kind=kind, hooks=[HOOK])])
    assert not report.in_force
    (problem,) = report.problems
    assert word in problem.message
    assert "'p'" in problem.message
    if kind == "wasm":
        assert "dotted class path" in problem.fix


def test_a_kind_is_a_special_word_or_a_dotted_path() -> None:
    special: Any = object()
    assert resolve_kind("caged", {"caged": special}) is special
    assert isinstance(resolve_kind("a.B", {}), TrustedClass)
    with raises_code("pipeline_plugin_not_loaded", match="unknown kind"):
        resolve_kind("caged", {})
    with raises_code("pipeline_plugin_not_loaded", match="dotted"):
        load_class("Class")


async def test_a_plugin_that_does_not_start_in_time_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline_module, "START_TIMEOUT_S", 0.01)

    class Slow(Plugin):
        async def initialize(self) -> None:
            await asyncio.Event().wait()

    pipeline = make(kinds={"lab.Slow": ClassKind(Slow)})
    report = await pipeline.load_configs([PluginConfig(name="p", kind="lab.Slow")])
    assert "did not start" in report.problems[0].message


async def test_plugins_are_stopped_last_first_when_they_leave_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline_module, "SHUTDOWN_TIMEOUT_S", 0.01)
    ended: list[str] = []

    class Ends(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> None: ...

        async def shutdown(self) -> None:
            ended.append(self.name)
            if self.name == "b":
                raise RuntimeError("not my day")
            if self.name == "a":
                await asyncio.Event().wait()

    lab = await Lab.of(*[entry(Ends, name=name) for name in "abc"])
    await lab.pipeline.load_configs([])
    assert ended == ["c", "b", "a"]
    assert lab.pipeline.live == ()
    await lab.pipeline.close()

    partial = make(kinds={"lab.Ends": ClassKind(Ends)})
    ended.clear()
    await partial.load_configs(
        [
            PluginConfig(name="x", kind="lab.Ends", hooks=[HOOK]),
            PluginConfig(name="y", kind="lab.Ends", hooks=["no_such_hook"]),
        ]
    )
    assert ended == ["y", "x"], "nothing of a faulty file stays alive"


async def test_calls_that_run_while_the_plugins_change_finish_on_the_old_plan() -> None:
    gate = asyncio.Event()

    class Waits(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
            await gate.wait()
            return PluginResult(metadata={"old": True})

    lab = await Lab.of(entry(Waits))
    running = asyncio.get_running_loop().create_task(lab.call())
    await asyncio.sleep(0)
    await lab.pipeline.load_configs([])
    gate.set()
    assert (await running).metadata == {"old": True}
    assert (await lab.call()).executions == []


async def test_modules_beside_the_file_can_be_made_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "lab_local_plugin.py").write_text(
        "from kaged.pipeline import Plugin\n"
        "class Local(Plugin):\n"
        "    async def tool_pre_invoke(self, payload, context):\n"
        "        return None\n",
        encoding="utf-8",
    )
    text = (
        "plugin_dirs: [mine]\nplugins:\n"
        "  - {name: p, kind: lab_local_plugin.Local, hooks: [tool_pre_invoke]}\n"
    )
    pipeline = make()
    report = await pipeline.load_file(write(tmp_path, text))
    assert report.in_force, report.problems
    outside = await make().load_file(write(tmp_path, text.replace("[mine]", "[/etc, ../x]")))
    assert not outside.in_force
    assert sum("outside" in problem.message for problem in outside.problems) == 2
    await pipeline.close()


async def test_a_disabled_plugin_is_not_even_made() -> None:
    report = await make().load_configs(
        [PluginConfig.model_validate({"name": "p", "kind": "no.such.Class", "mode": "disabled"})]
    )
    assert report.in_force
    assert report.plugins == ()


async def test_the_plugin_gets_a_copy_of_its_configuration() -> None:
    kept: list[PluginConfig] = []

    class Keeps(Plugin):
        def __init__(self, config: PluginConfig) -> None:
            super().__init__(config)
            kept.append(config)
            assert config.config is not None
            config.config["nested"]["changed"] = True

        async def tool_pre_invoke(self, payload: Any, context: Any) -> None: ...

    lab = await Lab.of(entry(Keeps, config={"nested": {}}))
    (live,) = lab.pipeline.live
    assert live.config.config == {"nested": {}}
    assert kept[0] is not live.config


async def test_many_calls_leave_nothing_behind() -> None:
    """No registry, cache or list grows with the number of calls."""
    import gc
    import tracemalloc

    class Edits(Plugin):
        async def tool_pre_invoke(self, payload: Any, context: Any, extensions: Any) -> Any:
            return PluginResult(
                modified_extensions=extensions.model_copy(
                    update={"custom": {"n": (extensions.custom or {}).get("n", 0) + 1}}
                )
            )

    from kaged.pipeline import Extensions

    lab = await Lab.of(entry(Edits), entry(Edits))
    payload = ToolPreInvokePayload(name="t", args={"a": 1})
    kept: list[int] = []
    tracemalloc.start()
    try:
        for round_number in range(3):
            for number in range(300):
                context = GlobalContext(f"r-{round_number}-{number}")
                await lab.call(payload, extensions=Extensions(), context=context)
            lab.contexts = None
            gc.collect()
            kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert kept[-1] - kept[0] < 20_000
