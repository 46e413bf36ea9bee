"""Why a policy failed, or was never put in force, has one code each: in the log and in `check`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import mcp
import pytest

from whole.harness.daemon import Daemon
from whole.harness.policies import PolicySite, entry, gives
from whole.harness.project import Project

SERVER = Path(__file__).parents[2] / "guests" / "mcp_plugin_server.py"
LIBRARIES = Path(mcp.__file__).parents[1]
SOURCE = """
import asyncio, os, sys, types
from cpex.framework import Config, GlobalContext, PluginManager, TenantPluginManager
from cpex.framework.models import PluginConfig


class Bare(Plugin):
    pass


class Cancels(Plugin):
    async def tool_pre_invoke(self, payload, context):
        raise asyncio.CancelledError


class Raises(Plugin):
    async def tool_pre_invoke(self, payload, context):
        raise ValueError("boom")


class Once(Plugin):
    # Starts one worker; the next one finds the mark and gives up.
    async def initialize(self):
        mark = self.config.config["mark"]
        if os.path.exists(mark):
            raise RuntimeError("not twice")
        open(mark, "w").close()

    async def tool_pre_invoke(self, payload, context):
        os.kill(os.getpid(), 9)


class Denies(Plugin):
    async def tool_pre_invoke(self, payload, context):
        return PluginResult(
            continue_processing=False, violation=PluginViolation("no", "really", "NOPE"))


class Deep(Plugin):
    inner = "Deep"

    async def tool_pre_invoke(self, payload, context):
        kind = f"{__name__}.{self.inner}"
        config = PluginConfig(name="deep", kind=kind, hooks=["tool_pre_invoke"])
        manager = TenantPluginManager(Config(plugins=[config]))
        await manager.initialize()
        try:
            await manager.invoke_hook(
                "tool_pre_invoke", payload, GlobalContext(request_id="1"),
                violations_as_exceptions=True)
        except Exception as error:
            note("deep", code=error.code)
            raise
        finally:
            await manager.shutdown()


class Asks(Deep):
    inner = "Denies"
"""
PAYLOAD = "payload.model_copy(update={'args': %s})"


def result(**fields: str) -> str:
    """Return the expression of a result with these fields."""
    inner = ", ".join(f"{name}={value}" for name, value in fields.items())
    return f"PluginResult({inner})"


def causes(daemon: Daemon, name: str) -> list[str]:
    """Return why a policy failed, oldest first."""
    rows = [one["data"] for one in daemon.audit("pipeline.plugin_failed")]
    return [one["cause"] for one in rows if one["plugin"] == name]


def nested(depth: int) -> str:
    """Return an expression of lists within lists."""
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("policy", "cause"),
    [
        (gives("1"), "pipeline_foreign_result"),
        (gives(result(modified_payload="1")), "pipeline_foreign_payload"),
        (gives(result(modified_extensions="1")), "pipeline_foreign_extensions"),
        (
            gives(result(modified_payload=PAYLOAD % "{'path': 'x' * 1_000_001}")),
            "pipeline_payload_too_large",
        ),
        (
            gives(result(modified_payload=PAYLOAD % f"{{'deep': {nested(70)}}}")),
            "pipeline_value_not_isolable",
        ),
        (
            gives(
                "change(ext, security=ext.security.model_copy(update={'labels': frozenset()}))",
                "append_labels",
            ),
            "tier_violation",
        ),
        (entry("giver", "Raises"), "plugin_raised"),
        (entry("giver", "Cancels"), "plugin_cancelled"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_failed_policy_is_on_record_with_its_cause(
    daemon: Daemon, site: PolicySite, shared: Project, policy: dict[str, Any], cause: str
) -> None:
    labels = "change(ext, security=grown(ext, 'first'))"
    site.put(
        gives(labels, "append_labels", name="labels"), {**policy, "name": cause}, source=SOURCE
    )
    assert shared.fail("file.read", path="a.txt")["code"] == "plugin_error"
    assert shared.fail("file.read", path="a.txt")["code"] == "plugin_error"
    assert causes(daemon, cause) == [cause] * 2


def test_policies_within_policies_go_only_so_deep(site: PolicySite, shared: Project) -> None:
    site.put(entry("deep", "Deep"), source=SOURCE)
    assert shared.fail("file.read", path="a.txt")["code"] == "plugin_error"
    codes = [one["code"] for one in site.seen("deep")]
    assert codes == ["pipeline_recursion", *["plugin_error"] * (len(codes) - 1)]
    assert len(codes) > 1


def test_a_policy_that_asks_others_hears_their_no(site: PolicySite, shared: Project) -> None:
    site.put(entry("asks", "Asks"), source=SOURCE)
    refused = shared.fail("file.read", path="a.txt")
    assert [one["code"] for one in site.seen("deep")] == ["plugin_violation"]
    assert refused["code"] == "pipeline_refused"
    site.put()
    shared.call("file.read", path="a.txt")


def test_what_a_caged_policy_cannot_be_told_and_a_worker_that_stays_away_have_names(
    daemon: Daemon, site: PolicySite, shared: Project, tmp_path: Path
) -> None:
    site.put(
        gives("change(ext, custom={'not': b'\\xff'})", name="odd"),
        entry("far", "caged", config={"class_name": "Spy"}),
        source=SOURCE,
    )
    assert shared.fail("file.read", path="a.txt")["code"] == "plugin_error"
    assert causes(daemon, "far") == ["plugin_call_not_sendable"]
    options = {
        "class_name": "Once", "mark": str(tmp_path / "mark"), "cage": {"write": [str(tmp_path)]}
    }  # fmt: skip
    site.put(entry("once", "caged", config=options), source=SOURCE)
    for _ in range(2):
        assert shared.fail("file.read", path="a.txt")["code"] == "plugin_error"
    assert causes(daemon, "once") == ["peer_gone", "plugin_worker_gone"]


def test_an_answer_of_a_server_that_is_none_has_a_name(
    daemon: Daemon, site: PolicySite, shared: Project
) -> None:
    table = {
        "proto": "STDIO",
        "cmd": [os.path.realpath(sys.executable), str(SERVER)],
        "env": {"PYTHONPATH": str(LIBRARIES)},
        "cage": {"read": [str(LIBRARIES), str(SERVER)]},
    }
    site.put(entry("nonsense", "external", mcp=table))
    assert shared.fail("file.read", path="a.txt")["code"] == "plugin_error"
    assert causes(daemon, "nonsense") == ["plugin_answer_invalid"]
    site.put()
    shared.call("file.read", path="a.txt")


# -- before anything is in force --------------------------------------------------------------


def test_check_names_what_keeps_each_policy_out(daemon: Daemon, site: PolicySite) -> None:
    """The last one finds the published framework in its process, as a program may load it."""
    site.write(
        entry("caps", "Spy", "read_everything"),
        entry("none", "os.path.join"),
        entry("bare", "Bare"),
        entry("far", "external", mcp={"proto": "SSE", "url": "http://x"}),
        source=SOURCE,
    )
    done = daemon.cli("pipeline", "check", str(site.file), "--json", code=None)
    assert done.code != 0
    found = {one["key_path"]: one["code"] for one in done.json["problems"]}
    assert found["plugins[0].capabilities"] == "extension_capability_invalid"
    site.write(
        entry("none", "os.path.join"),
        entry("bare", "Bare"),
        entry("far", "external", mcp={"proto": "SSE", "url": "http://x"}),
        entry("late", "Spy"),
        source=SOURCE + "\nsys.modules['cpex.framework'] = types.ModuleType('cpex.framework')\n",
    )
    done = daemon.cli("pipeline", "check", str(site.file), "--json", code=None)
    assert done.code != 0
    assert [one["code"] for one in done.json["problems"]] == [
        "pipeline_plugin_not_loaded",
        "pipeline_hook_not_bound",
        "mcp_server_invalid",
        "pipeline_standin_unavailable",
    ]


@pytest.mark.parametrize("words", [["--payload", "[]"], ["--slots", "{"], ["--payload", "@none"]])
def test_a_sample_call_that_is_none_is_refused(
    daemon: Daemon, site: PolicySite, words: list[str]
) -> None:
    site.write()
    done = daemon.cli("pipeline", "trace", str(site.file), *words, "--json", code=None)
    assert done.code != 0
    assert json.loads(done.err)["error"]["code"] == "pipeline_trace_input_invalid"
