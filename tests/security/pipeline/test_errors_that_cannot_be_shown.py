"""Foreign errors and answers whose own code strikes when the host looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.policies import PolicySite, entry
from whole.harness.project import Project

ERRORS = ("Silent", "Interrupts", "Cancels", "Endless", "Odd", "Disguised", "Ours")
SOURCE = """
import asyncio

from cpex.framework import PluginResult
from cpex.framework.errors import PluginError, PluginErrorModel


def raiser(error):
    def show(self):
        raise error
    return show


class Silent(Exception):
    __str__ = __repr__ = raiser(ValueError("never"))


class Interrupts(Exception):
    __str__ = __repr__ = raiser(KeyboardInterrupt())


class Cancels(Exception):
    __str__ = __repr__ = raiser(asyncio.CancelledError())


class Endless(Exception):
    def __str__(self):
        return "x" * 50_000_000
    __repr__ = __str__


class Text(str):
    __len__ = __getitem__ = encode = raiser(KeyboardInterrupt())


class Odd(Exception):
    def __str__(self):
        return Text("odd \\ud800 words")
    __repr__ = __str__


class Disguised(BaseException):
    __class__ = property(raiser(asyncio.CancelledError()))
    __str__ = __repr__ = raiser(asyncio.CancelledError())


class Ours(PluginError):
    def __init__(self):
        super().__init__(PluginErrorModel("m", "p"))
    message = property(raiser(asyncio.CancelledError()), lambda self, value: None)
    __str__ = __repr__ = raiser(asyncio.CancelledError())


class Cancelling:
    __bool__ = __eq__ = __iter__ = __len__ = __deepcopy__ = raiser(asyncio.CancelledError())
    __hash__ = None


class Raises(Plugin):
    async def tool_pre_invoke(self, payload, context):
        raise globals()[self.config.config["raises"]]()


class Answers(Plugin):
    async def tool_pre_invoke(self, payload, context):
        answer = PluginResult()
        answer.__dict__[self.config.config["field"]] = Cancelling()
        return answer


class AtStart(Plugin):
    def __init__(self, config):
        super().__init__(config)
        if config.config["at"] == "start":
            raise globals()[config.config["raises"]]()

    async def initialize(self):
        if self.config.config["at"] == "initialize":
            raise eval(self.config.config["raises"])()

    async def shutdown(self):
        raise asyncio.CancelledError

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
    assert made.stop() == 0
    made.close()


@pytest.fixture(scope="module")
def project(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = daemon.load(Project(tmp_path_factory.mktemp("work")))
    made.write("a.txt", "one\n")
    return made


def _failed_call(daemon: Daemon, project: Project) -> dict[str, Any]:
    """Call a tool that the policy keeps from running; it ends on record, like any other."""
    error = project.fail("file.read", path="a.txt")
    assert error["status"] < 500 or error["code"] != "internal_error", error
    rows = daemon.audit("tool.called", "tool.completed", "tool.denied")
    last = [one["event"] for one in rows if one["request_id"] == rows[-1]["request_id"]]
    assert last[0] == "tool.called"
    assert last[1] in {"tool.completed", "tool.denied"}
    failed = daemon.audit("pipeline.plugin_failed")[-1]
    assert failed["request_id"] == rows[-1]["request_id"]
    return dict(failed["data"])


@pytest.mark.parametrize("raises", ERRORS)
def test_an_error_that_strikes_when_it_is_shown_fails_its_call_only(
    daemon: Daemon, site: PolicySite, project: Project, raises: str
) -> None:
    options = {"raises": raises}
    site.put(entry("bad", "Raises", config=options, on_error="fail"), source=SOURCE)
    for _ in range(2):
        data = _failed_call(daemon, project)
        assert data["plugin"] == "bad"
        assert len(data["detail"]) <= 300
    site.put(entry("bad", "Raises", config=options, on_error="ignore"), source=SOURCE)
    assert "one" in str(project.call("file.read", path="a.txt"))
    assert len(daemon.log()) < 5_000_000


@pytest.mark.parametrize(
    "field", ["continue_processing", "metadata", "modified_payload", "modified_extensions"]
)
def test_an_answer_that_cancels_while_it_is_read_fails_its_call_only(
    daemon: Daemon, site: PolicySite, project: Project, field: str
) -> None:
    site.put(entry("bad", "Answers", config={"field": field}, on_error="fail"), source=SOURCE)
    for _ in range(2):
        assert _failed_call(daemon, project)["plugin"] == "bad"


@pytest.mark.parametrize("raises", ["Silent", "Cancels", "Endless", "asyncio.CancelledError"])
@pytest.mark.parametrize("at", ["start", "initialize"])
def test_a_start_that_fails_in_such_a_way_is_a_problem_of_the_file(
    daemon: Daemon, site: PolicySite, project: Project, at: str, raises: str
) -> None:
    if at == "start" and "." in raises:
        raises = "Cancels"
    options = {"at": at, "raises": raises}
    (problem,) = site.refused(entry("bad", "AtStart", config=options), source=SOURCE)
    assert "refused to start" in problem
    assert len(problem) < 5000
    site.put()
    assert "one" in str(project.call("file.read", path="a.txt"))


def test_an_end_that_claims_a_cancellation_keeps_nobody_from_the_next(
    daemon: Daemon, site: PolicySite, project: Project
) -> None:
    site.put(entry("bad", "AtStart", config={"at": "end"}), source=SOURCE)
    site.put()
    assert "one" in str(project.call("file.read", path="a.txt"))
    wait_for(lambda: "pipeline.plugin_shutdown_failed" in daemon.log(), "a line about it")
