"""Answers of policy plugins that are too large fail at once, wherever the plugin runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.policies import PolicySite, entry
from whole.harness.project import Project

SOURCE = """
class Large(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        options = self.config.config
        much = "x" * options["chars"]
        if payload.args.get("path") == "small.txt":
            return None
        if options["where"] == "payload":
            changed = payload.model_copy(update={"args": {**payload.args, "more": much}})
            return PluginResult(modified_payload=changed)
        if options["where"] == "custom":
            return PluginResult(
                modified_extensions=extensions.model_copy(update={"custom": {"more": much}}))
        return PluginResult(metadata={"more": much})
"""
IN_CAGE, HERE = "caged", "Large"
TOO_LARGE, TOO_LARGE_FOR_A_LINE = 1_000_001, 60_000_000
# Beyond the patience of the test's own client: a call that waits for it fails the test.
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> PolicySite:
    return PolicySite(tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="module")
def daemon(site: PolicySite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("h") / "h", config=site.config_toml())
    made.start()
    site.daemon = made
    wait_for(site.loads)
    yield made
    made.close()


@pytest.fixture(scope="module")
def project(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = daemon.load(Project(tmp_path_factory.mktemp("work")))
    for name in ("a.txt", "small.txt"):
        made.write(name, "one\n")
    return made


def _large(kind: str, where: str, chars: int, **more: Any) -> dict[str, Any]:
    config = {"where": where, "chars": chars}
    if kind == IN_CAGE:
        config |= {"class_name": "Large"}
    return entry("large", kind, config=config, on_error="fail", **more)


@pytest.mark.parametrize("where", ["payload", "custom", "metadata"])
@pytest.mark.parametrize("kind", [HERE, IN_CAGE])
def test_the_limit_of_payloads_holds_for_every_part_of_an_answer(
    daemon: Daemon, site: PolicySite, project: Project, kind: str, where: str
) -> None:
    site.put(_large(kind, where, TOO_LARGE), source=SOURCE)
    project.fail("file.read", path="a.txt")
    failed = daemon.audit("pipeline.plugin_failed")[-1]["data"]
    assert f"the {where}" in failed["detail"]
    assert "longer than 1000000 characters" in failed["detail"]
    site.put(_large(kind, where, 1000), source=SOURCE)
    if where != "payload":  # the tool takes no further arguments
        assert "one" in str(project.call("file.read", path="a.txt"))


def test_an_answer_too_long_for_a_line_fails_at_once_and_with_one_line_in_the_log(
    daemon: Daemon, site: PolicySite, project: Project
) -> None:
    large = _large(IN_CAGE, "metadata", TOO_LARGE_FOR_A_LINE, timeout_s=TIMEOUT_S)
    site.put(large, source=SOURCE)
    for number in (1, 2):  # the second one finds a fresh worker
        project.fail("file.read", path="a.txt")
        failed = daemon.audit("pipeline.plugin_failed")[-1]["data"]
        assert "a line is longer than" in failed["detail"]
        assert daemon.log().count("pipeline.worker_broken") == number
        assert "one" in str(project.call("file.read", path="small.txt"))
