"""Published plugins for the other framework, as their authors ship them, unmodified."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kaged.base import Ids, SystemClock
from kaged.cage import Spawner
from kaged.pipeline import (
    GlobalContext,
    Pipeline,
    PluginResult,
    PromptPrehookPayload,
    ResourcePostFetchPayload,
    ToolPostInvokePayload,
    ToolPreInvokePayload,
)
from kaged.pipeline.caged import CagedKind
from kaged.pipeline.cpex_compat import remove_cpex_compat

PUBLISHED = Path(__file__).parents[3] / "build" / "policy-plugins"
KEY = "AKIAIOSFODNN7EXAMPLE"
PII = "cpex_pii_filter.pii_filter.PIIFilterPlugin"
SECRETS = "cpex_secrets_detection.secrets_detection.SecretsDetectionPlugin"
RATE = "cpex_rate_limiter.rate_limiter.RateLimiterPlugin"


@pytest.fixture(scope="module")
def published() -> Iterator[Path]:
    """Yield the folder of the installed plugins, importable."""
    assert PUBLISHED.is_dir(), "the policy plugins are missing: run scripts/setup --tests"
    sys.path.insert(0, str(PUBLISHED))
    yield PUBLISHED
    sys.path.remove(str(PUBLISHED))
    for name in [n for n in sys.modules if n.split(".")[0].startswith("cpex_")]:
        del sys.modules[name]
    remove_cpex_compat()


class Host:
    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    async def load(self, text: str, folder: Path) -> None:
        path = folder / "pipeline.yaml"
        path.write_text(text, encoding="utf-8")
        report = await self.pipeline.load_file(path)
        assert report.in_force, report.problems

    async def run(self, hook: str, payload: Any, user: str = "alice") -> PluginResult[Any]:
        result, _ = await self.pipeline.invoke_hook(
            hook, payload, GlobalContext("r", user=user, tenant_id="t")
        )
        return result


@pytest.fixture
async def host(published: Path, spawner: Spawner) -> AsyncIterator[Host]:
    """Yield a pipeline that can load published plugins, here and caged."""
    clock = SystemClock()
    pipeline = Pipeline(clock, Ids(clock), kinds={"caged": CagedKind(spawner)})
    yield Host(pipeline)
    await pipeline.close()


def entry(kind: str, hooks: str, config: str, extra: str = "") -> str:
    return f"""\
plugins:
  - name: published
    kind: {kind}
    hooks: {hooks}
    config: {config}
{extra}"""


@pytest.mark.parametrize("caged", [False, True], ids=["in-process", "caged"])
async def test_the_pii_filter_masks_arguments_and_results(
    host: Host, tmp_path: Path, caged: bool
) -> None:
    options = "detect_email: true, detect_ssn: true, redaction_text: '[GONE]'"
    kind, config = (
        ("caged", f"{{class_name: {PII}, {options}}}") if caged else (PII, f"{{{options}}}")
    )
    hooks = "[tool_pre_invoke, tool_post_invoke, prompt_pre_fetch]"
    await host.load(entry(kind, hooks, config), tmp_path)
    before = await host.run(
        "tool_pre_invoke",
        ToolPreInvokePayload(
            name="t", args={"to": "bob@example.com", "deep": [{"ssn": "123-45-6789"}], "n": 5}
        ),
    )
    assert before.continue_processing is True
    assert before.modified_payload is not None
    assert "bob@example.com" not in repr(before.modified_payload)
    assert "123-45-6789" not in repr(before.modified_payload)
    assert before.modified_payload.args["n"] == 5
    after = await host.run(
        "tool_post_invoke", ToolPostInvokePayload(name="t", result={"text": "bob@example.com"})
    )
    assert after.modified_payload is not None
    assert after.modified_payload.result == {"text": "[GONE]"}
    clean = await host.run("prompt_pre_fetch", PromptPrehookPayload(prompt_id="p", args={"a": "b"}))
    assert clean.modified_payload is None


@pytest.mark.parametrize("caged", [False, True], ids=["in-process", "caged"])
async def test_the_secrets_detector_redacts_and_blocks(
    host: Host, tmp_path: Path, caged: bool
) -> None:
    def wrapped(options: str) -> tuple[str, str]:
        if caged:
            return "caged", f"{{class_name: {SECRETS}, {options}}}"
        return SECRETS, f"{{{options}}}"

    hooks = "[tool_pre_invoke, resource_post_fetch]"
    redacts = wrapped("redact: true, block_on_detection: false")
    await host.load(entry(redacts[0], hooks, redacts[1]), tmp_path)
    call = ToolPreInvokePayload(name="t", args={"note": f"key {KEY}"})
    result = await host.run("tool_pre_invoke", call)
    assert result.modified_payload is not None
    assert KEY not in repr(result.modified_payload)
    content = ResourcePostFetchPayload(uri="file:///x", content=f"key {KEY}")
    fetched = await host.run("resource_post_fetch", content)
    assert KEY not in repr(fetched.modified_payload)

    blocks = wrapped("block_on_detection: true")
    await host.load(entry(blocks[0], hooks, blocks[1]), tmp_path)
    denied = await host.run("tool_pre_invoke", call)
    assert denied.continue_processing is False
    assert denied.violation is not None
    assert denied.violation.plugin_name == "published"
    assert denied.violation.code
    assert KEY not in repr(denied.violation)


async def test_the_rate_limiter_counts_per_user(host: Host, tmp_path: Path) -> None:
    await host.load(
        entry(RATE, "[tool_pre_invoke]", "{by_user: 2/m}", "    capabilities: [read_subject]\n"),
        tmp_path,
    )
    call = ToolPreInvokePayload(name="t", args={})
    verdicts = [(await host.run("tool_pre_invoke", call)).continue_processing for _ in range(3)]
    assert verdicts == [True, True, False]
    assert (await host.run("tool_pre_invoke", call, user="bob")).continue_processing is True
    denied = await host.run("tool_pre_invoke", call)
    assert denied.violation is not None
    assert denied.violation.http_status_code == 429
    assert denied.violation.http_headers


async def test_several_published_plugins_work_in_one_chain(host: Host, tmp_path: Path) -> None:
    text = f"""\
plugins:
  - name: limiter
    kind: {RATE}
    hooks: [tool_pre_invoke]
    priority: 10
    capabilities: [read_subject]
    config: {{by_user: 60/m}}
  - name: secrets
    kind: {SECRETS}
    hooks: [tool_pre_invoke]
    priority: 20
    config: {{redact: true, block_on_detection: false}}
  - name: pii
    kind: {PII}
    hooks: [tool_pre_invoke]
    mode: transform
    config: {{detect_email: true}}
"""
    await host.load(text, tmp_path)
    result = await host.run(
        "tool_pre_invoke", ToolPreInvokePayload(name="t", args={"x": f"{KEY} bob@example.com"})
    )
    assert result.continue_processing is True
    assert [record.plugin_name for record in result.executions] == ["limiter", "secrets", "pii"]
    assert result.modified_payload is not None
    assert KEY not in repr(result.modified_payload)
    assert "bob@example.com" not in repr(result.modified_payload)


async def test_a_published_plugin_refuses_a_bad_configuration_at_load(
    host: Host, tmp_path: Path
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(entry(RATE, "[tool_pre_invoke]", "{by_user: often}"), encoding="utf-8")
    report = await host.pipeline.load_file(path)
    assert not report.in_force
    assert report.problems[0].line == 5
    assert "published" in report.problems[0].message


def test_nothing_of_the_original_framework_is_involved(published: Path) -> None:
    assert not (published / "cpex").exists()
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(published)!r})\n"
        "from kaged.pipeline.kinds import load_class\n"
        f"load_class({PII!r})\n"
        "framework = sys.modules['cpex.framework']\n"
        "assert not hasattr(framework, '__file__')\n"
        "assert framework.Plugin.__module__ == 'kaged.pipeline.plugin'\n"
        "assert 'mcp' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    assert done.returncode == 0, done.stderr
