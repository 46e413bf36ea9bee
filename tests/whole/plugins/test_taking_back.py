"""What the operator takes back from a plugin is gone at its next start, and with it for good.

Grants, secrets and data are the plugin's that they were given to: neither a restart keeps what
`local.toml` no longer says, nor does another plugin of the same name find what the first one left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_store import Ear, heard, preview
from whole.harness.plugin_terminal import at_terminal

GRANT = "write:fs:config:/memory"
TELLS_ENV = {"on": {"a.b": [{"env": True}]}}
SYSTEM = {"type": "object", "properties": {"api_token": {"type": "string"}}}


def edit(daemon: Daemon, old: str, new: str) -> None:
    """Change a part of `local.toml` as an operator does."""
    text = (daemon.home / "local.toml").read_text(encoding="utf-8")
    assert old in text
    daemon.write("local.toml", text.replace(old, new, 1))


def started_anew(one: PluginFolder, before: int) -> None:
    """Wait until another process than that of `before` runs."""

    def looked() -> bool:
        now = one.state()
        return now["state"] == "running" and now["pid"] not in {before, None}

    wait_for(looked)


def granted(one: PluginFolder) -> bool:
    """Return whether the running process was started with the grant."""
    inside = "KAGED_CONFIG_ROOT" in one.call()["env"]
    assert one.state()["operator_grants"] == ([GRANT] if inside else [])
    return inside


@whole("PH-AMB-68")
def test_a_grant_that_was_taken_back_is_not_granted_at_the_next_start(  # noqa: PLR0915 - one life, step by step
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    one = PluginFolder(daemon, tmp_path / "writer", TELLS_ENV, name="writer")
    other = PluginFolder(daemon, tmp_path / "other", TELLS_ENV, name="other")
    one.run()
    untouched = other.run()["pid"]
    head, line = "[plugins.writer]\n", f'grants = ["{GRANT}"]\n'
    assert not granted(one)

    edit(daemon, head, head + line)
    assert not granted(one), "read when it starts, not before"
    # Both cages are shown: the one of its next start, and the one that it runs in.
    (item,) = daemon.cli("cage", "explain", "writer", "--json").json["items"]
    grants = [one["text"] for one in item["capabilities"] if one["operator_added"]]
    assert (grants, item["running"]["same"]) == ([GRANT], False)
    assert item["running"]["allows"] != item["allows"]
    told = daemon.cli("cage", "explain", "writer").out
    assert "It runs in this one now" in told
    assert "kaged plugin restart writer" in told
    daemon.post("/plugins/writer/restart")
    assert granted(one)
    (item,) = daemon.cli("cage", "explain", "writer", "--json").json["items"]
    assert item["running"]["same"] is True

    # The process dies, and the host starts it again by itself.
    pid = one.state()["pid"]
    edit(daemon, head + line, head)
    # Until then it runs with what was taken back, and both cages are shown.
    (item,) = daemon.cli("cage", "explain", "writer", "--json").json["items"]
    assert not any(one["operator_added"] for one in item["capabilities"])
    assert item["running"]["same"] is False
    words = [one["words"] for one in item["running"]["allows"]]
    (more,) = {*words} - {one["words"] for one in item["allows"]}
    told = daemon.cli("cage", "explain", "writer").out
    assert more in told.partition("It runs in this one now")[2]
    os.kill(pid, signal.SIGKILL)
    started_anew(one, pid)
    assert not granted(one)
    (item,) = daemon.cli("cage", "explain", "writer", "--json").json["items"]
    assert item["running"]["same"] is True
    assert more not in daemon.cli("cage", "explain", "writer").out

    # By SIGHUP, in both directions; plugins that nothing changed for go on as they are.
    for before, after, wanted in ((head, head + line, True), (head + line, head, False)):
        pid = one.state()["pid"]
        edit(daemon, before, after)
        os.kill(daemon.pid, signal.SIGHUP)
        started_anew(one, pid)
        assert granted(one) is wanted
    assert other.state()["pid"] == untouched
    said = [row for row in daemon.log().splitlines() if "plugin.operator_changed" in row]
    assert [GRANT in row and "writer" in row for row in said] == [True, True]

    # Approving changed files shows what the operator has added beside what the plugin asks for.
    edit(daemon, head, head + line)
    with (daemon.home / "plugins" / "writer" / "main.py").open("a", encoding="utf-8") as program:
        program.write("# changed\n")
    (daemon.home / "plugins" / "writer" / "more.txt").write_text("new", encoding="utf-8")
    renewal = daemon.get("/plugins/writer/renewal")
    shown = renewal["capabilities"]
    assert [one["text"] for one in shown if one["operator_added"]] == [GRANT]
    assert renewal["changed_files"] == ["changed: main.py", "added: more.txt"]
    words = "\n".join(renewal["lines"])
    assert "Capability changes: none" in words
    assert f"- {GRANT}  (added by the operator)" in words
    for same in ("version", "description", "kaged_api"):
        assert f"{same}:" not in words, "what did not change is not shown"
    daemon.cli("plugin", "renew", "writer", "--yes")
    edit(daemon, head + line, head)
    wait_for(lambda: one.state()["state"] == "running")

    # What cannot be read grants nothing, and stops nothing that runs.
    pid = one.state()["pid"]
    edit(daemon, head, f'{head}grants = ["write:fs:nowhere:/x"]\n')
    os.kill(daemon.pid, signal.SIGHUP)
    wait_for(lambda: daemon.audit("daemon.config_reloaded")[-1]["data"]["problems"] != [])
    assert one.state()["pid"] == pid
    daemon.post("/plugins/writer/restart")
    assert one.state()["state"] == "failed"

    # A restart starts a plugin that has failed, once what was wrong is right.
    edit(daemon, f'{head}grants = ["write:fs:nowhere:/x"]\n', head)
    os.kill(daemon.pid, signal.SIGHUP)
    wait_for(lambda: daemon.audit("daemon.config_reloaded")[-1]["data"]["problems"] == [])
    assert daemon.cli("plugin", "restart", "writer").out.strip() == "writer is running."
    daemon.post("/plugins/writer/disable")
    assert daemon.post("/plugins/writer/restart")["state"] == "disabled", "off stays off"


def remembering(daemon: Daemon, root: Path, **manifest: Any) -> tuple[PluginFolder, Ear]:
    """Return a plugin called `mem` that keeps a file, and what is said to it."""
    one = PluginFolder(daemon, root, name="mem")
    capabilities = ["write:fs:config:/notes"]
    return one, heard(
        one,
        {"on": {"a.b": [{"env": True}]}},
        capabilities=capabilities,
        system_config_schema=SYSTEM,
        **manifest,
    )


@whole("PH-INST-27", "PH-INST-28", "PH-CONF-02")
@pytest.mark.parametrize("section", ['"@scope/mem"', "mem"])
def test_nothing_of_an_uninstalled_plugin_is_there_for_the_next_one_of_its_name(
    own: Callable[..., Daemon], tmp_path: Path, section: str
) -> None:
    secret = "marker-secret-of-the-first-0451"
    daemon = own(local=f'[plugins.{section}]\napi_token = "{secret}"\n\n[plugins.near]\nx = 1\n')
    daemon.start()
    first, ear = remembering(daemon, tmp_path / "first" / "mem", package="@scope/mem")
    shown = preview(daemon, first.root)
    assert shown["given"] == ["api_token"]
    _, text = at_terminal(daemon, "plugin", "install", str(first.root), answer="n")
    assert "what local.toml has for it: api_token" in text
    assert secret not in f"{shown}{text}"
    first.run()
    assert secret in str(ear.lines())
    data = Path(first.call()["env"]["KAGED_CONFIG_ROOT"])
    (data / "notes" / "diary").write_text("of the first", encoding="utf-8")

    daemon.cli("plugin", "uninstall", "mem")
    assert not data.exists()
    local = (daemon.home / "local.toml").read_text(encoding="utf-8")
    assert secret not in local
    assert "[plugins.near]" in local
    second, other_ear = remembering(daemon, tmp_path / "second" / "mem", version="2.0.0")
    assert preview(daemon, second.root)["given"] == []
    assert second.run()["state"] == "running"
    assert list((data / "notes").iterdir()) == []
    assert secret not in str(other_ear.lines())
    # And after a start of the daemon, which reads everything again.
    daemon.stop()
    daemon.start()
    wait_for(lambda: second.state()["state"] == "running")
    assert secret not in str(other_ear.lines())
