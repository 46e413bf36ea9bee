from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kaged.cage import CageKind, CageRequest
from kaged.config import Locations
from kaged.config.settings import read_settings
from kaged.mcp.configured import plans_of
from kaged.mcp.host import McpHost
from kaged.mcp.outside import OutsideServer
from kaged.mcp.plan import OutsidePlan
from kaged.tools.registry import ToolRegistry


def plans(tmp_path: Path, config: str) -> Any:
    (tmp_path / "config.toml").write_text(config, encoding="utf-8")
    (tmp_path / "config.toml").chmod(0o600)
    environ = {"HOME": str(tmp_path), "KAGED_HOME": str(tmp_path), "KEY": "s3cret"}
    return plans_of(read_settings(Locations.from_env(environ), environ))


def test_a_server_is_caged_by_its_own_section_and_nothing_else(tmp_path: Path) -> None:
    config = """
        [mcp.servers.weather]
        command = ["/opt/weather", "--stdio"]
        env = { TOKEN = "${KEY}" }
        timeout_seconds = 5
        agents = ["primary"]
        projects = ["travel"]
        allow_tools = ["get_*"]
        deny_tools = ["get_rich"]
        changed_tools = "follow"
        max_output_kb = 2
        cage = { fs = [{mode = "ro", path = "/opt"}], net = ["api.test:443"] }
    """
    plan = plans(tmp_path, config)["weather"]
    request = plan.request
    assert isinstance(request, CageRequest)
    assert (request.name, request.kind) == ("mcp:weather", CageKind.SERVER)
    assert request.command == ("/opt/weather", "--stdio")
    assert request.env == (("TOKEN", "s3cret"),)
    assert [grant.path for grant in request.policy.fs] == ["/opt"]
    assert [target.text for target in request.policy.net] == ["api.test:443"]
    assert (plan.timeout_s, plan.output_bytes, plan.follow) == (5.0, 2048, True)
    assert plan.reaches_net
    assert [plan.takes(name) for name in ("get_it", "get_rich", "put_it")] == [True, False, False]


def test_without_a_cage_section_a_server_reaches_nothing(tmp_path: Path) -> None:
    plan = plans(tmp_path, "[mcp.servers.bare]\ncommand = 'x'\n")["bare"]
    assert (plan.request.policy.fs, plan.request.policy.net) == ((), ())
    assert plan.follow is False
    assert plan.takes("anything")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://far.test/mcp", "far.test:443"),
        ("http://far.test/mcp?x=1", "far.test:80"),
        ("http://far.test:8080/", "far.test:8080"),
    ],
)
def test_a_server_behind_a_url_is_reached_by_a_relay_that_reaches_nothing_else(
    tmp_path: Path, url: str, target: str
) -> None:
    plan = plans(tmp_path, f"[mcp.servers.far]\nurl = '{url}'\n")["far"]
    assert [one.text for one in plan.request.policy.net] == [target]
    assert plan.request.command[-1] == url
    (mount,) = plan.request.mounts
    assert Path(mount.source).name == "relay.py"
    assert plan.request.policy.fs == ()


def test_a_url_without_a_host_switches_its_server_off_with_a_reason(tmp_path: Path) -> None:
    plan = plans(tmp_path, "[mcp.servers.far]\nurl = 'http:///mcp'\n")["far"]
    assert plan.enabled is False
    assert "http:///mcp" in plan.fault


@pytest.mark.parametrize(
    ("agents", "projects", "agent", "names", "admitted"),
    [
        ((), (), "primary.subagents.x", ("prj_1", "a", "/a"), True),
        (("primary",), (), "primary.subagents.x", ("prj_1", "a", "/a"), False),
        (("primary*",), (), "primary.subagents.x", ("prj_1", "a", "/a"), True),
        ((), ("a",), "primary", ("prj_1", "a", "/a"), True),
        ((), ("/a",), "primary", ("prj_1", "a", "/a"), True),
        ((), ("b",), "primary", ("prj_1", "a", "/a"), False),
        (("other",), ("a",), "primary", ("prj_1", "a", "/a"), False),
    ],
)
async def test_the_operator_decides_who_may_use_a_server(
    agents: tuple[str, ...],
    projects: tuple[str, ...],
    agent: str,
    names: tuple[str, ...],
    admitted: bool,
) -> None:
    host = McpHost(ToolRegistry())
    plan = OutsidePlan("out", None, agents=agents, projects=projects)
    parts: Any = MappingProxyType({})
    host._servers["out"] = OutsideServer(plan, parts)
    assert host.admits("out", agent, names) is admitted
    assert host.admits("a-lua-script", agent, names) is True


def test_variables_come_from_the_secrets_of_local_toml_and_a_missing_one_is_a_fault(
    tmp_path: Path,
) -> None:
    local = tmp_path / "local.toml"
    local.write_text('[secrets]\none = "first"\nbroken = "${UNSET}"\n', encoding="utf-8")
    local.chmod(0o600)
    section = "[mcp.servers.{0}]\ncommand = 'x'\nenv = {{ A = 'a' }}\nsecrets = {{ B = '{1}' }}\n"
    names = {"good": "one", "none": "nobody", "unset": "broken"}
    found = plans(tmp_path, "".join(section.format(*pair) for pair in names.items()))
    assert found["good"].request.env == (("A", "a"), ("B", "first"))
    assert (found["good"].enabled, found["good"].fault) == (True, "")
    assert [found[name].enabled for name in ("none", "unset")] == [False, False]
    assert "no value for nobody" in found["none"].fault
