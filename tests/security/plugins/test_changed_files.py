"""Changed files of an installed plugin run only after the operator has agreed to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.plugin import PluginFolder

PLANTED = (
    "\nimport pathlib; pathlib.Path('/tmp/ran').touch(); raise SystemExit('planted code ran')\n"
)


@pytest.fixture
def plugin(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[PluginFolder]:
    """Yield an installed plugin that runs, on a daemon of its own."""
    daemon = Daemon(tmp_path_factory.mktemp("h") / "h")
    daemon.start()
    made = PluginFolder(daemon, tmp_path / "stub", {"on": {"a.b": [{"echo": True}]}})
    assert made.run()["state"] == "running"
    yield made
    daemon.close()


def _installed(plugin: PluginFolder) -> Path:
    (found,) = plugin.daemon.home.rglob(f"{plugin.name}/main.py")
    return found


def _change(plugin: PluginFolder) -> bytes:
    """Write other code into the installed files; returns what was there."""
    program = _installed(plugin)
    before = program.read_bytes()
    program.chmod(0o644)
    program.write_bytes(PLANTED.encode() + before)
    return before


def test_a_restart_refuses_them_with_a_code_of_its_own_and_the_running_process_goes_on(
    plugin: PluginFolder,
) -> None:
    before = _change(plugin)
    for _ in range(2):
        error = plugin.daemon.error("POST", f"/plugins/{plugin.name}/restart")
        assert (error["status"], error["code"]) == (409, "plugin_files_changed")
        assert f"kaged plugin renew {plugin.name}" in error["data"]["fix"]
    assert plugin.state()["state"] == "running"
    plugin.call()
    _installed(plugin).write_bytes(before)
    plugin.daemon.post(f"/plugins/{plugin.name}/restart")
    assert plugin.state()["state"] == "running"


def test_a_restart_after_a_crash_does_not_run_them(plugin: PluginFolder) -> None:
    before = _change(plugin)
    os.kill(plugin.state()["pid"], signal.SIGKILL)
    wait_for(lambda: plugin.state()["state"] == "failed", "the refusal")
    assert "planted" not in str(plugin.state())
    (failed,) = plugin.audit("plugin.failed")
    assert failed["data"]["step"] == "consent"
    error = plugin.daemon.error("POST", f"/plugins/{plugin.name}/enable")
    assert (error["status"], error["code"]) == (409, "plugin_files_changed")
    _installed(plugin).write_bytes(before)
    assert plugin.daemon.post(f"/plugins/{plugin.name}/enable")["state"] == "running"


def test_what_the_operator_has_agreed_to_again_runs(plugin: PluginFolder) -> None:
    program = _installed(plugin)
    program.chmod(0o644)
    program.write_bytes(program.read_bytes() + b"\n# another line\n")
    plugin.daemon.cli("plugin", "renew", plugin.name, "--yes")
    plugin.daemon.post(f"/plugins/{plugin.name}/restart")
    assert plugin.state()["state"] == "running"
