"""The example plugins of the specification, with their own import lines and with ours."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kaged.base import Ids, ManualClock
from kaged.pipeline import (
    Extensions,
    GlobalContext,
    HttpExtension,
    Pipeline,
    ToolPreInvokePayload,
)
from kaged.pipeline.cpex_compat import remove_cpex_compat
from requirements import requirement

CPEX_IMPORTS = """\
from cpex.framework import hook, Plugin, PluginContext, PluginResult
from cpex.framework import ToolPreInvokePayload, ToolPreInvokeResult
from cpex.framework.extensions.extensions import Extensions
from cpex.framework.extensions.http import HttpExtension
from cpex.framework.extensions.request import RequestExtension
from cpex.framework.extensions.security import SecurityExtension
"""
OWN_IMPORTS = """\
from kaged.pipeline import hook, Plugin, PluginContext, PluginResult
from kaged.pipeline import ToolPreInvokePayload, ToolPreInvokeResult
from kaged.pipeline import Extensions, HttpExtension, RequestExtension, SecurityExtension
from kaged.pipeline import filter_extensions, merge_extensions
"""
EXAMPLES = """

ext = Extensions(
    request=RequestExtension(environment="production", request_id="req-001"),
    security=SecurityExtension(labels=frozenset({"pii", "confidential"})),
)


class HeaderInspectorPlugin(Plugin):
    @hook("tool_pre_invoke")
    async def inspect_headers(
        self,
        payload: ToolPreInvokePayload,
        context: PluginContext,
        extensions: Extensions,
    ) -> ToolPreInvokeResult:
        if extensions.http:
            auth = extensions.http.headers.get("authorization", "none")
            context.set_state("auth_method", auth.split()[0] if " " in auth else auth)
        return ToolPreInvokeResult(continue_processing=True)


class TokenDelegationPlugin(Plugin):
    async def _exchange_token(self, extensions):
        return "delegated-token"

    @hook("tool_pre_invoke")
    async def delegate_token(
        self,
        payload: ToolPreInvokePayload,
        context: PluginContext,
        extensions: Extensions,
    ) -> ToolPreInvokeResult:
        delegated_token = await self._exchange_token(extensions)

        updated_http = HttpExtension(
            headers={**(extensions.http.headers if extensions.http else {}),
                     "authorization": f"Bearer {delegated_token}"},
        )
        updated_ext = extensions.model_copy(update={"http": updated_http})

        return ToolPreInvokeResult(
            continue_processing=True,
            modified_extensions=updated_ext,
        )
"""


@pytest.fixture(params=["cpex", "own"])
def examples(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Yield the name of a module with the examples, under both kinds of imports."""
    name = f"spec_examples_{request.param}"
    imports = CPEX_IMPORTS if request.param == "cpex" else OWN_IMPORTS
    (tmp_path / f"{name}.py").write_text(imports + EXAMPLES, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield name
    sys.modules.pop(name, None)
    remove_cpex_compat()


async def load(module: str, name: str, capabilities: str, folder: Path) -> Pipeline:
    path = folder / "pipeline.yaml"
    path.write_text(
        f"""\
plugins:
  - name: example
    kind: {module}.{name}
    hooks:
      - tool_pre_invoke
    mode: sequential
    capabilities: {capabilities}
""",
        encoding="utf-8",
    )
    clock = ManualClock()
    pipeline = Pipeline(clock, Ids(clock))
    report = await pipeline.load_file(path)
    assert report.in_force, report.problems
    return pipeline


async def run(pipeline: Pipeline, extensions: Extensions) -> tuple[Any, Any]:
    result, table = await pipeline.invoke_hook(
        "tool_pre_invoke",
        ToolPreInvokePayload(name="t"),
        GlobalContext("r"),
        extensions=extensions,
    )
    assert table is not None
    (context,) = table.values()
    return result, context


@requirement("EX-HOOK-07")
async def test_the_header_inspector_records_the_auth_method(examples: str, tmp_path: Path) -> None:
    pipeline = await load(examples, "HeaderInspectorPlugin", "[read_headers]", tmp_path)
    cases: list[tuple[HttpExtension | None, str | None]] = [
        (HttpExtension(headers={"authorization": "Bearer x"}), "Bearer"),
        (HttpExtension(headers={"authorization": "opaque"}), "opaque"),
        (HttpExtension(headers={"other": "y"}), "none"),
        (None, None),
    ]
    for http, recorded in cases:
        result, context = await run(pipeline, Extensions(http=http))
        assert result.continue_processing is True
        assert context.get_state("auth_method") == recorded
    await pipeline.close()


@requirement("EX-HOOK-08")
async def test_the_token_delegation_needs_write_headers(examples: str, tmp_path: Path) -> None:
    before = Extensions(http=HttpExtension(headers={"authorization": "Bearer old", "x-t": "1"}))
    granted = await load(
        examples, "TokenDelegationPlugin", "[read_headers, write_headers]", tmp_path
    )
    result, _ = await run(granted, before)
    assert result.modified_extensions is not None
    assert result.modified_extensions.http.headers == {
        "authorization": "Bearer delegated-token",
        "x-t": "1",
    }
    await granted.close()
    refused = await load(examples, "TokenDelegationPlugin", "[read_headers]", tmp_path)
    result, _ = await run(refused, before)
    assert result.modified_extensions is None
    assert before.http is not None
    assert before.http.headers["authorization"] == "Bearer old"
    await refused.close()


@requirement("EX-AMB-13")
async def test_the_examples_run_under_both_sets_of_names(examples: str, tmp_path: Path) -> None:
    pipeline = await load(examples, "TokenDelegationPlugin", "[write_headers]", tmp_path)
    module: ModuleType = sys.modules[examples]
    assert module.ext.request.environment == "production"
    assert module.ext.security.labels == frozenset({"pii", "confidential"})
    assert module.ext.http is None
    updated = module.ext.model_copy(update={"custom": {"trace_id": "abc-123"}})
    assert updated.custom == {"trace_id": "abc-123"}
    result, _ = await run(pipeline, module.ext)
    assert result.modified_extensions.http.headers == {"authorization": "Bearer delegated-token"}
    if examples.endswith("cpex"):
        tiers = importlib.import_module("cpex.framework.extensions.tiers")
        assert tiers.filter_extensions(module.ext, frozenset()).security.labels == frozenset()
        assert tiers.merge_extensions(module.ext, None, frozenset(), "p") is module.ext
        assert not hasattr(sys.modules["cpex"], "__file__"), "the original is not involved"
    else:
        import kaged.pipeline as own

        for name in [
            "AgentExtension",
            "CompletionExtension",
            "DelegationExtension",
            "Extensions",
            "FrameworkExtension",
            "HttpExtension",
            "LLMExtension",
            "MCPExtension",
            "MetaExtension",
            "ProvenanceExtension",
            "RequestExtension",
            "SecurityExtension",
            "Plugin",
            "PluginContext",
            "PluginResult",
            "hook",
            "ToolPreInvokePayload",
            "ToolPreInvokeResult",
            "filter_extensions",
            "merge_extensions",
        ]:
            assert hasattr(own, name)
    await pipeline.close()
