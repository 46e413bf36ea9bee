"""Foreign code in the daemon that raises what is no `Exception` ends its own call, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kaged.base import Ids, SystemClock, Tasks
from kaged.pipeline.pipeline import LoadReport, Pipeline
from kaged.pipeline.settings import PluginConfig
from whole.harness.daemon import Daemon, wait_for
from whole.harness.policies import POST, PRE, PolicySite, entry
from whole.harness.project import Project

RAISED = (
    "KeyboardInterrupt",
    "SystemExit",
    "GeneratorExit",
    "Panic",
    "Group",
    "asyncio.CancelledError",
)
SOURCE = """
import asyncio


class Panic(BaseException):
    '''As the one that a Rust library raises; it cannot even be shown.'''

    def __repr__(self):
        raise KeyboardInterrupt


def Group():
    return BaseExceptionGroup("several", [KeyboardInterrupt(), SystemExit(3)])


class Raises(Plugin):
    async def _act(self):
        options = self.config.config
        if options["late"]:
            await asyncio.sleep(0)
        raise eval(options["raises"])()

    async def tool_pre_invoke(self, payload, context):
        await self._act()

    async def tool_post_invoke(self, payload, context):
        await self._act()


class Cancels(Plugin):
    async def _act(self, at):
        if self.config.config["at"] == at:
            asyncio.current_task().cancel()
            if self.config.config["late"]:
                await asyncio.sleep(0)

    async def initialize(self):
        await self._act("initialize")

    async def shutdown(self):
        await self._act("shutdown")

    async def tool_pre_invoke(self, payload, context):
        await self._act("hook")

    async def tool_post_invoke(self, payload, context):
        await self._act("hook")


class Broken(Plugin):
    def __init__(self, config):
        if config.config["at"] == "start":
            raise SystemExit(3)
        super().__init__(config)

    async def initialize(self):
        if self.config.config["at"] == "initialize":
            raise KeyboardInterrupt

    async def shutdown(self):
        raise KeyboardInterrupt

    async def tool_pre_invoke(self, payload, context):
        return None
"""


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
    assert made.stop() == 0  # its own signal still ends it, after all this
    made.close()


@pytest.fixture(scope="module")
def project(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = daemon.load(Project(tmp_path_factory.mktemp("work")))
    made.write("a.txt", "one\n")
    return made


def _raising(raises: str, *, late: bool, **more: Any) -> dict[str, Any]:
    return entry("bad", "Raises", config={"raises": raises, "late": late}, **more)


def _cancelling(at: str, *, late: bool, caged: bool, **more: Any) -> dict[str, Any]:
    config = {"at": at, "late": late}
    if caged:
        return entry("bad", "caged", config={"class_name": "Cancels", **config}, **more)
    return entry("bad", "Cancels", config=config, **more)


def _rows(daemon: Daemon) -> list[str]:
    rows = daemon.audit("tool.called", "tool.completed", "tool.denied")
    last = rows[-1]["request_id"]
    return [one["event"] for one in rows if one["request_id"] == last]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after a wait"])
@pytest.mark.parametrize("raises", RAISED)
def test_what_a_policy_raises_fails_the_call_and_not_the_daemon(
    daemon: Daemon, site: PolicySite, project: Project, raises: str, late: bool
) -> None:
    for hook in (PRE, POST):
        site.put(_raising(raises, late=late, hooks=[hook], on_error="fail"), source=SOURCE)
        pid = daemon.get("/status")["pid"]
        error = project.fail("file.read", path="a.txt")
        assert error["status"] < 500 or error["code"] != "internal_error", error
        called, closing = _rows(daemon)
        assert called == "tool.called"
        assert closing in {"tool.completed", "tool.denied"}
        assert daemon.get("/status")["pid"] == pid
        (failed,) = [one for one in daemon.audit("pipeline.plugin_failed")[-1:] if one["data"]]
        assert failed["data"]["plugin"] == "bad"


@pytest.mark.parametrize("raises", RAISED)
def test_on_error_holds_for_them_as_for_every_failure(
    daemon: Daemon, site: PolicySite, project: Project, raises: str
) -> None:
    for on_error in ("ignore", "disable"):
        site.put(_raising(raises, late=True, on_error=on_error), source=SOURCE)
        before = len(daemon.audit("pipeline.plugin_failed"))
        for _ in range(2):
            assert "one" in str(project.call("file.read", path="a.txt"))
            assert _rows(daemon) == ["tool.called", "tool.completed"]
        failed = len(daemon.audit("pipeline.plugin_failed")) - before
        assert failed == (2 if on_error == "ignore" else 1)


@pytest.mark.parametrize("mode", ["concurrent", "fire_and_forget"])
@pytest.mark.parametrize("raises", ["KeyboardInterrupt", "Panic"])
def test_policies_beside_others_and_in_the_background_are_held_to_it(
    daemon: Daemon, site: PolicySite, project: Project, raises: str, mode: str
) -> None:
    site.put(_raising(raises, late=True, mode=mode, on_error="ignore"), source=SOURCE)
    before = len(daemon.audit("pipeline.plugin_failed"))
    assert "one" in str(project.call("file.read", path="a.txt"))
    wait_for(lambda: len(daemon.audit("pipeline.plugin_failed")) > before, "the failure on record")
    assert _rows(daemon) == ["tool.called", "tool.completed"]


@pytest.mark.parametrize("at", ["start", "initialize"])
def test_a_policy_that_raises_at_its_start_is_refused(
    daemon: Daemon, site: PolicySite, at: str
) -> None:
    (problem,) = site.refused(entry("bad", "Broken", config={"at": at}), source=SOURCE)
    assert "refused to start" in problem
    (problem,) = site.refused(
        entry("bad", "Broken", config={"at": at}), source="raise KeyboardInterrupt"
    )
    assert "cannot be imported" in problem


def test_a_policy_that_raises_at_its_end_keeps_nobody_from_the_next(
    daemon: Daemon, site: PolicySite, project: Project
) -> None:
    site.put(entry("bad", "Broken", config={"at": "end"}), source=SOURCE)
    site.put()
    assert "one" in str(project.call("file.read", path="a.txt"))
    wait_for(lambda: "pipeline.plugin_shutdown_failed" in daemon.log(), "a line about it")


@pytest.mark.parametrize("caged", [False, True], ids=["in the daemon", "caged"])
@pytest.mark.parametrize("late", [False, True], ids=["at its end", "at a wait"])
def test_a_policy_that_cancels_its_own_task_at_the_start_is_refused(
    daemon: Daemon, site: PolicySite, project: Project, late: bool, caged: bool
) -> None:
    site.put()  # a refused file leaves what was in force before it
    for _ in range(2):
        (problem,) = site.refused(_cancelling("initialize", late=late, caged=caged), source=SOURCE)
        assert "refused to start" in problem
        assert "cancelled the task" in problem
    assert "one" in str(project.call("file.read", path="a.txt"))
    site.put()


@pytest.mark.parametrize("late", [False, True], ids=["at its end", "at a wait"])
def test_a_policy_that_cancels_its_own_task_at_the_end_keeps_nobody_from_the_next(
    daemon: Daemon, site: PolicySite, project: Project, late: bool
) -> None:
    before = daemon.log().count("pipeline.plugin_shutdown_failed")
    site.put(_cancelling("shutdown", late=late, caged=False), source=SOURCE)
    site.put(_cancelling("shutdown", late=late, caged=False), source=SOURCE)
    site.put()
    wait_for(
        lambda: daemon.log().count("pipeline.plugin_shutdown_failed") == before + 2, "two lines"
    )
    assert "one" in str(project.call("file.read", path="a.txt"))


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after a wait"])
@pytest.mark.parametrize("how", ["raises", "cancels"])
def test_a_cancellation_in_a_caged_policy_is_its_failure_and_is_told_at_once(
    daemon: Daemon, site: PolicySite, project: Project, how: str, late: bool
) -> None:
    """Without an answer from its worker the call would wait for the policy's whole timeout."""

    def caged(**more: Any) -> dict[str, Any]:
        if how == "cancels":
            return _cancelling("hook", late=late, caged=True, **more)
        config = {"class_name": "Raises", "raises": "asyncio.CancelledError", "late": late}
        return entry("bad", "caged", config=config, **more)

    pid = daemon.get("/status")["pid"]
    for hook in (PRE, POST):
        site.put(caged(hooks=[hook], on_error="fail"), source=SOURCE)
        for _ in range(2):
            error = project.fail("file.read", path="a.txt")
            assert error["code"] == "plugin_error", error
            called, closing = _rows(daemon)
            assert called == "tool.called"
            assert closing in {"tool.completed", "tool.denied"}
    for on_error in ("ignore", "disable"):
        site.put(caged(on_error=on_error), source=SOURCE)
        before = len(daemon.audit("pipeline.plugin_failed"))
        for _ in range(2):
            assert "one" in str(project.call("file.read", path="a.txt"))
            assert _rows(daemon) == ["tool.called", "tool.completed"]
        rows = daemon.audit("pipeline.plugin_failed")[before:]
        assert len(rows) == (2 if on_error == "ignore" else 1)
        assert all("cancelled the task" in str(row["data"]) for row in rows), rows
    assert daemon.get("/status")["pid"] == pid


LOOKED_AT = """
import asyncio


class Asked(type(Plugin)):
    def __getattribute__(self, name):
        if name == "__mro__":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


class Read(Plugin):
    @property
    def tool_pre_invoke(self):
        asyncio.current_task().cancel()


class Shown(Plugin, metaclass=Asked):
    pass


class Ends(Plugin):
    def shutdown(self):
        asyncio.current_task().cancel()
        raise KeyboardInterrupt

    async def tool_pre_invoke(self, payload, context):
        return None


class Leaves(Plugin):
    async def tool_pre_invoke(self, payload, context):
        asyncio.get_running_loop().call_soon(self._raise)
        self.kept = asyncio.create_task(self._later())

    async def _later(self):
        await asyncio.sleep(0)
        self._raise()

    def _raise(self):
        raise eval(self.config.config["raises"])()
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("asyncio.current_task().cancel()", id="at import"),
        pytest.param("asyncio.current_task().cancel()\nraise KeyboardInterrupt", id="and raises"),
        pytest.param(LOOKED_AT + "\n\nP = Read", id="when its hook is read"),
        pytest.param(LOOKED_AT + "\n\nP = Shown", id="when its class is read"),
    ],
)
async def test_whoever_loads_a_policy_is_not_cancelled_by_its_module_or_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """The daemon's start and reload wait for nothing that would notice it at once."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"policy_{tmp_path.name}".replace("-", "_").replace("[", "_").replace("]", "_")
    head = "import asyncio\nfrom kaged.pipeline.plugin import Plugin\n"
    (tmp_path / f"{name}.py").write_text(f"{head}{source}\n", encoding="utf-8")
    pipeline = Pipeline(SystemClock(), Ids(SystemClock()))

    async def load() -> LoadReport:
        report = await pipeline.load_configs(
            [PluginConfig(name="bad", kind=f"{name}.P", hooks=[PRE])]
        )
        await asyncio.sleep(0)  # where a cancellation on its way would arrive
        return report

    report = await Tasks("loads").start(load(), "load")
    assert not report.in_force
    assert "'bad'" in report.problems[0].message
    await pipeline.close()


def test_an_end_that_is_no_coroutine_keeps_nobody_from_the_next(
    daemon: Daemon, site: PolicySite, project: Project
) -> None:
    before = daemon.log().count("pipeline.plugin_shutdown_failed")
    site.put(entry("bad", "Ends"), source=LOOKED_AT)
    site.put()
    wait_for(
        lambda: daemon.log().count("pipeline.plugin_shutdown_failed") == before + 1, "one line"
    )
    assert "one" in str(project.call("file.read", path="a.txt"))


@pytest.mark.parametrize("raises", ["KeyboardInterrupt", "SystemExit", "GeneratorExit"])
def test_work_that_a_policy_leaves_in_the_event_loop_does_not_end_the_daemon(
    daemon: Daemon, site: PolicySite, project: Project, raises: str
) -> None:
    site.put(entry("bad", "Leaves", config={"raises": raises}), source=LOOKED_AT)
    pid = daemon.get("/status")["pid"]
    before = daemon.log().count("daemon.foreign_exit")
    for _ in range(3):
        assert "one" in str(project.call("file.read", path="a.txt"))
    assert daemon.get("/status")["pid"] == pid
    if raises != "GeneratorExit":  # which asyncio tells as any other error
        wait_for(lambda: daemon.log().count("daemon.foreign_exit") == before + 6, "six lines")
    site.put()
