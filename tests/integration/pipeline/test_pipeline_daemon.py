"""A daemon with policy plugins: faulty files, mended files, and what operators are told."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from fakes.plugin_lab import BASE_MANIFEST, STUB
from fakes.running_daemon import ANY_PORT, DaemonProcess, kaged, make_home, start_daemon
from requirements import requirement

POLICIES = """
from kaged.pipeline import Plugin, PluginResult, PluginViolation

class Denies(Plugin):
    async def tool_pre_invoke(self, payload, context):
        if (payload.args or {}).get("danger"):
            return PluginResult(
                continue_processing=False, violation=PluginViolation("not that", "d", "DANGER"))

class Refuses(Plugin):
    def __init__(self, config):
        raise RuntimeError("I will not")

    async def tool_pre_invoke(self, payload, context): ...
"""
SOUND = """\
plugin_dirs: [mine]
plugins:
  - name: guard
    kind: {module}.Denies
    hooks: [tool_pre_invoke]
"""
FAULTY = f"""{SOUND}    capabilities: [read_header]
  - name: stubborn
    kind: {{module}}.Refuses
    hooks: [tool_pre_invoke]
  - name: sound
    kind: {{module}}.Denies
    hooks: [tool_pre_invoke]
"""


class Site:
    """A home, a policy file and a daemon on them."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "h"
        self.file = folder / "policies.yaml"
        # A name of its own per test: workers of one test run import it in one process.
        self.module = f"site_{folder.name.replace('-', '_')}"
        (folder / "mine").mkdir()
        (folder / "mine" / f"{self.module}.py").write_text(POLICIES, encoding="utf-8")
        plugin = folder / "stub"
        plugin.mkdir()
        shutil.copy(STUB, plugin / "main.py")
        (plugin / "kaged-plugin.yaml").write_text(yaml.safe_dump(BASE_MANIFEST), encoding="utf-8")
        behaviour = {"on": {"a.b": [{"echo": True}]}}
        (plugin / "behaviour.json").write_text(json.dumps(behaviour), encoding="utf-8")
        self.plugin = plugin
        self.daemon: DaemonProcess | None = None

    def write(self, text: str) -> None:
        self.file.write_text(text.format(module=self.module), encoding="utf-8")

    def configure(self, more: str = "") -> None:
        make_home(self.home, f'{ANY_PORT}[pipeline]\nfile = "{self.file}"\n{more}')

    def start(self) -> httpx.Client:
        self.daemon = start_daemon(self.home, config=None)
        assert self.daemon.said.get("ready"), self.daemon.log()
        return self.daemon.client()

    def install(self, client: httpx.Client) -> None:
        seen = client.post("/plugins/preview", json={"path": str(self.plugin)}).json()
        consent = {"path": str(self.plugin), "digest": seen["digest"]}
        done = client.post("/plugins", json=consent)
        assert done.status_code == 201, done.text
        client.post("/plugins/stub/enable")

    def events(self, name: str) -> list[dict[str, Any]]:
        done = kaged(self.home, "audit", "query", "--event", name, "--json")
        return [row["data"] for row in json.loads(done.stdout)]

    def until(self, name: str, count: int) -> dict[str, Any]:
        """Wait for an event, by following the trail; returns the newest."""
        for _ in range(600):
            found = self.events(name)
            if len(found) >= count:
                return found[0]
        assert self.daemon is not None
        raise AssertionError(self.daemon.log())

    def hang_up(self, count: int) -> dict[str, Any]:
        assert self.daemon is not None
        self.daemon.signal(signal.SIGHUP)
        return self.until("daemon.config_reloaded", count)


def call(client: httpx.Client, **params: Any) -> httpx.Response:
    return client.post("/plugins/stub/call/a.b", json=params)


def row(client: httpx.Client) -> dict[str, Any]:
    return _pipeline_row(client.get("/doctor").json())


def _pipeline_row(found: dict[str, Any]) -> dict[str, Any]:
    (seen,) = [one for one in found["rows"] if one["id"] == "pipeline"]
    return dict(seen)


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        made = Site(Path(folder).resolve())
        yield made
        if made.daemon is not None and made.daemon.process.poll() is None:
            made.daemon.kill()


@requirement("EX-AMB-24")
def test_a_faulty_file_is_reported_whole_and_calls_are_refused_until_it_is_mended(
    site: Site,
) -> None:
    site.write(FAULTY)
    site.configure()
    with site.start() as client:
        loaded = site.until("pipeline.loaded", 1)
        assert loaded["in_force"] is False
        first, second = loaded["problems"]
        assert f"{site.file}:6:" in first
        assert "read_header'" in first
        assert "'guard'" in first
        assert f"{site.file}:7:" in second
        assert "I will not" in second
        # Status and doctor say so, the command line too, and the call is refused.
        (warning,) = [w for w in client.get("/status").json()["warnings"] if "pipeline" in w]
        assert "read_header" in warning
        assert "I will not" in warning
        seen = row(client)
        assert seen["status"] == "fail"
        assert "tool_pre_invoke are refused" in seen["cause"]
        assert "kaged pipeline check" in seen["fix"]
        checked = kaged(site.home, "pipeline", "check", "--json")
        assert checked.returncode == 6
        assert [one["line"] for one in json.loads(checked.stdout)["problems"]] == [6, 7]
        site.install(client)
        refused = call(client, q=1)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "pipeline_not_ready"
        assert str(site.file) in refused.json()["error"]["message"]
        # With the switch the sound plugin runs.
        site.configure("lenient = true\n")
        site.hang_up(1)
        assert call(client, q=1).json()["result"]["q"] == 1
        denied = call(client, danger=True)
        assert denied.status_code == 403
        assert "not that" in denied.json()["error"]["message"]
        assert row(client)["status"] == "warn"
        # Mended, without the switch.
        site.write(SOUND)
        site.configure()
        site.hang_up(2)
        assert row(client)["status"] == "ok"
        assert call(client, q=1).json()["result"]["q"] == 1
        assert call(client, danger=True).status_code == 403
        # A faulty file leaves the old plan working.
        site.write(FAULTY)
        assert len(site.hang_up(3)["problems"]) == 2
        assert call(client, q=1).json()["result"]["q"] == 1
        assert call(client, danger=True).status_code == 403
        seen = row(client)
        assert (seen["status"], "old file is in force" in seen["cause"]) == ("warn", True)
        # Without a file there is no policy at all.
        make_home(site.home, ANY_PORT)
        site.hang_up(4)
        assert call(client, danger=True).json()["result"]["danger"] is True
        assert row(client)["status"] == "ok"


def test_a_file_that_is_not_there_refuses_every_call_and_the_daemon_still_runs(site: Site) -> None:
    site.configure()
    with site.start() as client:
        assert site.until("pipeline.loaded", 1)["in_force"] is False
        site.install(client)
        refused = call(client, q=1)
        assert refused.json()["error"]["code"] == "pipeline_not_ready"
        assert "every hook" in row(client)["cause"]


def test_doctor_without_a_daemon_reads_the_file_and_starts_nothing(site: Site) -> None:
    site.write(FAULTY)
    site.configure()
    done = kaged(site.home, "doctor", "--json")
    seen = _pipeline_row(json.loads(done.stdout))
    assert seen["status"] == "fail"
    assert "read_header" in seen["cause"]
    assert "I will not" not in seen["cause"]
