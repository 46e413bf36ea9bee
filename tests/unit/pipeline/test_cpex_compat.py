from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kaged.pipeline as own
from fakes.pipeline_plugins import Meets
from kaged.config.problems import ConfigFileInvalid
from kaged.pipeline import GlobalContext, PluginContext, PluginResult, ToolPreInvokePayload
from kaged.pipeline.cpex_compat import install_cpex_compat, remove_cpex_compat
from kaged.pipeline.cpex_compat.names import CPEX_NAMES
from kaged.pipeline.kinds import load_class
from raising import raises_code

CALL = ToolPreInvokePayload(name="t", args={"a": 1})


@pytest.fixture(autouse=True)
def standin() -> Iterator[None]:
    install_cpex_compat()
    yield
    sys.modules.pop("cpex.framework", None)
    remove_cpex_compat()


def framework() -> Any:
    return importlib.import_module("cpex.framework")


def test_every_module_of_the_stand_in_imports_and_its_names_are_ours() -> None:
    for module_name, names in CPEX_NAMES.items():
        module = importlib.import_module(module_name)
        for name in names:
            home = getattr(getattr(module, name), "__module__", "kaged.")
            assert home.startswith(("kaged.", "types", "builtins"))
    assert framework().Plugin is own.Plugin
    assert importlib.import_module("cpex.framework.extensions").Extensions is own.Extensions


def test_names_outside_the_stand_in_do_not_exist() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("cpex.framework.no_such_module")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("cpexx")


def test_offering_twice_changes_nothing_and_withdrawing_takes_all_away() -> None:
    before = len(sys.meta_path)
    install_cpex_compat()
    assert len(sys.meta_path) == before
    framework()
    remove_cpex_compat()
    assert "cpex.framework" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("cpex.framework")
    install_cpex_compat()
    assert framework().hook is own.hook


def test_the_published_framework_and_the_stand_in_do_not_mix() -> None:
    remove_cpex_compat()
    sys.modules["cpex.framework"] = ModuleType("cpex.framework")
    with raises_code("pipeline_standin_unavailable", match="already loaded"):
        install_cpex_compat()
    with raises_code("pipeline_standin_unavailable"):
        load_class("fakes.pipeline_plugins.Tagger")


CONFIG = """\
plugins:
  - name: tagger
    kind: fakes.pipeline_plugins.Tagger
    hooks: [tool_pre_invoke]
"""


async def test_a_program_runs_hooks_with_a_manager_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    manager = framework().TenantPluginManager(str(path))
    assert not manager.initialized
    assert manager.plugin_count == 0
    assert manager.get_plugin("tagger") is None
    assert not manager.has_hooks_for("tool_pre_invoke")
    with pytest.raises(RuntimeError, match="initialize"):
        await manager.invoke_hook("tool_pre_invoke", CALL, GlobalContext("r"))
    manager.reset_runtime_disabled()
    await manager.initialize()
    await manager.initialize()
    assert manager.initialized
    assert manager.plugin_count == 1
    assert manager.executor is manager
    assert [plugin.name for plugin in manager.config.plugins] == ["tagger"]
    assert manager.get_plugin("tagger").name == "tagger"
    assert manager.get_plugin("none") is None
    assert manager.has_hooks_for(framework().ToolHookType.TOOL_PRE_INVOKE)
    result, table = await manager.invoke_hook(
        framework().ToolHookType.TOOL_PRE_INVOKE, CALL, GlobalContext("r")
    )
    assert result.metadata == {"tagged": "tagger"}
    assert len(table) == 1
    manager.reset_runtime_disabled()
    await manager.shutdown()
    await manager.shutdown()
    assert not manager.initialized


async def test_one_hook_of_one_plugin_can_be_run_alone() -> None:
    f = framework()
    config = f.PluginConfig(
        name="tagger", kind="fakes.pipeline_plugins.Tagger", hooks=["tool_pre_invoke"]
    )
    models = importlib.import_module("cpex.framework.models")
    manager = f.TenantPluginManager(models.Config(plugins=[config]))
    await manager.initialize()
    context = PluginContext(GlobalContext("r"), {"kept": 1})
    for payload, as_json in ((CALL, False), ('{"name": "t"}', True)):
        result = await manager.invoke_hook_for_plugin(
            "tagger", "tool_pre_invoke", payload, context, payload_as_json=as_json
        )
        assert result.metadata == {"tagged": "tagger"}
    assert context.state == {"kept": 1}
    for name, hook in (("none", "tool_pre_invoke"), ("tagger", "tool_post_invoke")):
        with pytest.raises(ValueError, match=r"no plugin|no hook"):
            await manager.invoke_hook_for_plugin(name, hook, CALL, context)
    await manager.shutdown()


async def test_a_faulty_configuration_is_raised_with_every_problem(tmp_path: Path) -> None:
    f = framework()
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("[tool_pre_invoke]", "[tool_pre_invoke, nope]"), "utf-8")
    manager = f.TenantPluginManager(str(path))
    with pytest.raises(ConfigFileInvalid, match="nope"):
        await manager.initialize()
    assert not manager.initialized
    path.write_text("plugins: 5\n", "utf-8")
    with pytest.raises(ConfigFileInvalid):
        await f.TenantPluginManager(str(path)).initialize()
    empty = f.TenantPluginManager(str(tmp_path / "missing.yaml"))
    await empty.initialize()
    assert empty.plugin_count == 0


async def test_the_process_wide_manager_shares_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = framework()
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    assert f.get_plugin_manager() is None
    monkeypatch.setenv("PLUGINS_ENABLED", "true")
    monkeypatch.setenv("PLUGINS_CONFIG_FILE", str(path))
    monkeypatch.setenv("PLUGINS_PLUGIN_TIMEOUT", "7")
    try:
        manager = f.get_plugin_manager()
        await manager.initialize()
        assert f.PluginManager().plugin_count == 1
        assert f.get_plugin_manager().initialized
        await manager.shutdown()
        assert not f.PluginManager().initialized
    finally:
        f.PluginManager.reset()
    assert f.PluginManager().plugin_count == 0
    f.PluginManager.reset()


async def test_a_second_construction_adds_what_the_first_left_open_and_changes_nothing(
    tmp_path: Path,
) -> None:
    f = framework()
    policies = importlib.import_module("cpex.framework.hooks.policies")
    spans = importlib.import_module("cpex.framework.observability")
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(CONFIG, encoding="utf-8")
    second.write_text(CONFIG.replace("tagger", "other"), encoding="utf-8")
    closed = {"tool_pre_invoke": policies.HookPayloadPolicy(writable_fields=frozenset())}
    try:
        manager = f.PluginManager(str(first))
        f.PluginManager(str(second), hook_policies=closed)
        await manager.initialize()
        kept, late = Spans(), Spans()
        again = f.PluginManager(str(second), observability=kept)
        f.PluginManager(observability=late)
        token = spans.current_trace_id.set("trace-1")
        try:
            await manager.invoke_hook("tool_pre_invoke", CALL, GlobalContext("r"))
        finally:
            spans.current_trace_id.reset(token)
        assert ("start", "trace-1", "plugin.execute.tagger") in kept.log
        assert late.log == []
        assert again.plugin_count == 1
        assert again.config is manager.config
        assert [plugin.name for plugin in again.config.plugins] == ["tagger"]
        await again.initialize()
        assert manager.get_plugin("tagger") is again.get_plugin("tagger") is not None
        await again.shutdown()
        f.PluginManager.reset()
        early = f.PluginManager()
        f.PluginManager(str(first), observability=kept)
        await early.initialize()
        assert early.plugin_count == 1
        await early.shutdown()
    finally:
        f.PluginManager.reset()


async def test_plugin_dirs_are_found_from_where_the_program_runs_and_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from cpex.framework import Plugin, ToolPreInvokeResult\n"
        "class Mine(Plugin):\n"
        "    async def tool_pre_invoke(self, payload, context):\n"
        "        return ToolPreInvokeResult(metadata={'by': __name__})\n"
    )
    for where, module in (
        (tmp_path / "here", "mine_here"),
        (tmp_path / "conf" / "own", "mine_own"),
    ):
        where.mkdir(parents=True)
        (where / f"{module}.py").write_text(source, encoding="utf-8")
    path = tmp_path / "conf" / "config.yaml"
    path.write_text(
        "plugin_dirs: [here, own]\nplugins:\n"
        + "".join(
            f"  - {{name: {name}, kind: {name}.Mine, hooks: [tool_pre_invoke]}}\n"
            for name in ("mine_here", "mine_own")
        ),
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    manager = framework().TenantPluginManager(str(path))
    await manager.initialize()
    assert manager.plugin_count == 2
    await manager.shutdown()


def test_copies_know_what_was_changed_in_them() -> None:
    memory = importlib.import_module("cpex.framework.memory")
    original = {"a": 1, "b": {"c": 1}}
    mine = memory.copyonwrite(original)
    assert isinstance(mine, memory.CopyOnWriteDict)
    assert not mine.has_modifications()
    mine["a"] = 2
    mine["b"]["c"] = 2
    mine["d"] = 3
    del mine["d"]
    mine["e"] = 4
    assert (mine.get_modifications(), mine.get_deleted()) == ({"a": 2, "e": 4}, set())
    del mine["a"]
    assert mine.get_deleted() == {"a"}
    assert original == {"a": 1, "b": {"c": 1}}
    assert deepcopy(mine).get_modifications() == {"e": 4}
    assert json.loads(json.dumps(mine)) == {"b": {"c": 2}, "e": 4}
    assert repr(mine) == "CopyOnWriteDict({'b': {'c': 2}, 'e': 4})"
    items = memory.copyonwrite([1, 2])
    assert not items.has_modifications()
    items.reverse()
    assert items.has_modifications()
    assert repr(items) == "CopyOnWriteList([2, 1])"
    with pytest.raises(TypeError, match="No copy-on-write wrapper"):
        memory.copyonwrite("text")
    given = CALL.model_copy(update={"args": {"a": [1]}})
    wrapped = memory.wrap_payload_for_isolation(given)
    wrapped.args["a"].append(2)
    wrapped.args["b"] = 1
    assert wrapped.args.get_modifications() == {"b": 1}
    assert given.args == {"a": [1]}
    assert memory.wrap_payload_for_isolation("text") == "text"


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = importlib.import_module("cpex.framework.settings").get_settings()
    assert settings.plugin_timeout == 30
    assert settings.execution_pool == 10
    assert settings.fail_on_plugin_error is False
    assert getattr(settings, "max_tool_retries", 4) == 4
    settings.cache_clear()
    monkeypatch.setenv("PLUGINS_FAIL_ON_PLUGIN_ERROR", "1")
    assert settings.fail_on_plugin_error is True


class Spans:
    def __init__(self) -> None:
        self.log: list[Any] = []
        self.attributes: list[dict[str, Any]] = []

    def start_span(self, trace_id: str, name: str, **more: Any) -> str:
        self.log.append(("start", trace_id, name))
        self.attributes.append(more["attributes"])
        return name

    def end_span(self, span_id: str | None, status: str = "ok", **more: Any) -> None:
        self.log.append(("end", span_id, status))
        self.attributes.append(more["attributes"])


async def test_spans_are_written_while_a_trace_is_current() -> None:
    f = framework()
    spans = importlib.import_module("cpex.framework.observability")
    models = importlib.import_module("cpex.framework.models")
    kept = Spans()
    config = f.PluginConfig(
        name="tagger", kind="fakes.pipeline_plugins.Tagger", hooks=["tool_pre_invoke"]
    )
    manager = f.TenantPluginManager(models.Config(plugins=[config]), observability=kept)
    await manager.initialize()
    await manager.invoke_hook("tool_pre_invoke", CALL, GlobalContext("r"))
    assert kept.log == []
    token = spans.current_trace_id.set("trace-1")
    try:
        await manager.invoke_hook("tool_pre_invoke", CALL, GlobalContext("r"))
        big = ToolPreInvokePayload(name="t", args={"x": "y" * 2_000_000})
        with pytest.raises(ValueError, match="longer"):
            await manager.invoke_hook("tool_pre_invoke", big, GlobalContext("r"))
    finally:
        spans.current_trace_id.reset(token)
    assert kept.log == [
        ("start", "trace-1", "plugin.hook.invoke"),
        ("start", "trace-1", "plugin.execute.tagger"),
        ("end", "plugin.execute.tagger", "ok"),
        ("end", "plugin.hook.invoke", "ok"),
        ("start", "trace-1", "plugin.hook.invoke"),
        ("end", "plugin.hook.invoke", "error"),
    ]
    chain, plugin, plugin_ended, chain_ended = kept.attributes[:4]
    assert chain == {"plugin.hook.type": "tool_pre_invoke", "plugin.chain.length": 1}
    assert plugin["plugin.name"] == "tagger"
    assert (plugin["plugin.mode"], plugin["plugin.priority"]) == ("sequential", 100)
    assert plugin["plugin.uuid"]
    assert plugin["plugin.timeout"] == 30
    assert plugin_ended["plugin.had_violation"] is False
    assert (chain_ended["plugin.executed_count"], chain_ended["plugin.skipped_count"]) == (1, 0)
    nothing = spans.NullObservability()
    assert nothing.start_span("t", "n") is None
    assert nothing.end_span(None) is None
    await manager.shutdown()


@pytest.mark.parametrize(("pool", "most"), [("1", 1), ("2", 2), ("0", 4)])
async def test_the_execution_pool_says_how_many_concurrent_plugins_run_at_once(
    monkeypatch: pytest.MonkeyPatch, pool: str, most: int
) -> None:
    f = framework()
    models = importlib.import_module("cpex.framework.models")
    monkeypatch.setenv("PLUGINS_EXECUTION_POOL", pool)
    kind = "fakes.pipeline_plugins.Meets"
    config = models.Config(
        plugins=[
            f.PluginConfig(name=f"m{n}", kind=kind, hooks=["tool_pre_invoke"], mode="concurrent")
            for n in range(4)
        ]
    )
    manager = f.TenantPluginManager(config)
    await manager.initialize()
    Meets.most = 0
    result, _ = await manager.invoke_hook("tool_pre_invoke", CALL, GlobalContext("r"))
    await manager.shutdown()
    assert result.continue_processing
    assert Meets.most == most


async def test_who_changed_the_answer_decides_about_a_permission_not_who_ends_the_call() -> None:
    f = framework()
    models = importlib.import_module("cpex.framework.models")
    http = importlib.import_module("cpex.framework.hooks.http")
    hook = "http_auth_check_permission"
    plugins = [
        f.PluginConfig(name="decides", kind="fakes.pipeline_plugins.Grants", hooks=[hook]),
        f.PluginConfig(
            name="ends", kind="fakes.pipeline_plugins.Ends", hooks=[hook], mode="concurrent"
        ),
    ]
    asked = http.HttpAuthCheckPermissionPayload(
        user_email="u@example.com", permission="tools.execute", resource_type="tool"
    )
    for listed, decider in ((plugins, "decides"), (plugins[1:], None)):
        manager = f.TenantPluginManager(models.Config(plugins=listed))
        await manager.initialize()
        result, _ = await manager.invoke_hook(hook, asked, GlobalContext("r"))
        await manager.shutdown()
        assert result.continue_processing is False
        assert result.metadata.get("_decision_plugin") == decider


def test_stand_in_modules_tell_their_names_and_records_are_made_as_models_are() -> None:
    tiers = importlib.import_module("cpex.framework.extensions.tiers")
    assert "filter_extensions" in tiers.__all__
    assert not any(name.startswith("_") for name in tiers.__all__)
    gated = tiers.AccessPolicy.CAPABILITY_GATED
    policy = tiers.SlotPolicy(
        tier=tiers.MutabilityTier.IMMUTABLE, access=gated, read_cap=tiers.Capability.READ_AGENT
    )
    assert (policy.access, policy.write_cap) == (gated, None)
    f = framework()
    violation = f.PluginViolation.model_construct(reason="r", description="d", code="c")
    assert (violation.reason, violation.details) == ("r", {})


async def test_small_functions_do_what_plugins_expect() -> None:
    utils = importlib.import_module("cpex.framework.utils")
    assert utils.get_attr({"a": 1}, "a") == 1
    assert utils.get_attr(None, "a", "d") == "d"
    assert utils.get_attr(CALL, "name") == "t"
    assert utils.get_attr(5, "name", "d") == "d"
    assert utils.get_matchable_value(CALL, "tool_pre_invoke") == "t"
    assert utils.parse_class_name("a.b.C") == ("a.b", "C")
    assert utils.import_module("json").__name__ == "json"
    condition = framework().PluginCondition(tenant_ids={"x"})
    assert not utils.matches(condition, GlobalContext("r"))
    assert utils.matches(framework().PluginCondition(), GlobalContext("r"))
    assert not utils.payload_matches(CALL, "tool_pre_invoke", [condition], GlobalContext("r"))
    assert utils.payload_matches(CALL, "tool_pre_invoke", [], GlobalContext("r"))
    memory = importlib.import_module("cpex.framework.memory")
    data = {"a": [1]}
    for copy in (memory.copyonwrite(data), memory.wrap_payload_for_isolation(data)):
        assert copy == data
        assert copy["a"] is not data["a"]
    loaded = (
        await framework()
        .PluginLoader()
        .load_and_instantiate_plugin(
            framework().PluginConfig(name="p", kind="fakes.pipeline_plugins.Tagger")
        )
    )
    assert loaded.name == "p"
    with raises_code("pipeline_plugin_not_loaded"):
        await (
            framework()
            .PluginLoader()
            .load_and_instantiate_plugin(framework().PluginConfig(name="p", kind="os.path.x"))
        )
    assert framework().get_hook_registry() is framework().get_hook_registry()
    assert framework().PluginResult is PluginResult


def test_results_violations_and_contexts_are_made_of_plain_data() -> None:
    made = PluginResult.model_validate(
        {
            "continue_processing": False,
            "violation": {"reason": "r", "description": "d", "code": "c"},
            "modified_extensions": {"custom": {"a": 1}},
            "unknown": 1,
        }
    )
    assert made.violation is not None
    assert (made.continue_processing, made.violation.code) == (False, "c")
    assert made.modified_extensions == own.Extensions(custom={"a": 1})
    assert PluginResult.model_validate(made) is made
    for wrong in ({"violation": {"reason": "r"}}, "text"):
        with pytest.raises(ValueError, match=r"needs an object|missing"):
            PluginResult.model_validate(wrong)
    context = framework().PluginContext(plugin_id="p", global_context=GlobalContext("r"))
    assert context.global_context.request_id == "r"


def test_constants_protocols_and_policies_have_their_published_names() -> None:
    constants = importlib.import_module("cpex.framework.constants")
    assert constants.EXTERNAL_PLUGIN_TYPE in constants.KNOWN_PLUGIN_KINDS
    protocols = importlib.import_module("cpex.framework.protocols")
    message = framework().PluginViolation("r", "d", "c")
    assert not isinstance(message, protocols.MessageLike)
    policies = importlib.import_module("cpex.framework.hooks.policies")
    policy = policies.HookPayloadPolicy(frozenset({"args"}))
    other = ToolPreInvokePayload(name="other", args={"a": 2})
    merged = policies.apply_policy(CALL, other, policy)
    assert merged is not None
    assert (merged.name, merged.args) == ("t", {"a": 2})
    assert policies.apply_policy(CALL, CALL, policy) is None


async def test_a_manager_knows_its_file_before_it_starts_and_is_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own_dir_plugin.py").write_text(
        "from cpex.framework import Plugin\nclass P(Plugin):\n"
        "    async def tool_pre_invoke(self, payload, context):\n        return None\n",
        encoding="utf-8",
    )
    file = tmp_path / "config.yaml"
    file.write_text(
        "plugin_dirs: [mine]\nplugins:\n  - name: p\n    kind: own_dir_plugin.P\n"
        "    hooks: [tool_pre_invoke]\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PLUGINS_ENABLED", "true")
    monkeypatch.setenv("PLUGINS_CONFIG_FILE", str(file))
    monkeypatch.setattr(sys, "path", [*sys.path])
    framework().PluginManager.reset()
    manager = framework().get_plugin_manager()
    assert framework().get_plugin_manager() is manager
    assert [one.name for one in manager.config.plugins] == ["p"]
    await manager.initialize()
    assert manager.plugin_count == 1
    await manager.shutdown()
    framework().PluginManager.reset()
    assert framework().get_plugin_manager() is not manager
    framework().PluginManager.reset()
