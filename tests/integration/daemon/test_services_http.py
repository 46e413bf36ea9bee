"""Service capabilities in a whole daemon: configured, offered, looked at and taken back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fakes.running_daemon import ANY_PORT, InProcess, daemon_in_process, make_project
from kaged.services.account_service import AccountService
from kaged.services.errors import CapabilityError
from kaged.wire.tokens import RoutingClaims
from raising import raises_code
from requirements import requirement

GUESTS = Path(__file__).parents[2] / "guests"


def _config(home: Path) -> str:
    return f"""{ANY_PORT}
[capabilities.providers.gog]
command = ["/usr/bin/python3", "{GUESTS / "bridge_g1.py"}"]
confirm = ["email.send"]
env = {{ BRIDGE_LOG = "{home / "bridge.log"}" }}

[capabilities.providers.caged]
namespace = "acme"
command = ["/usr/bin/python3", "{GUESTS / "bridge_g1.py"}"]
cage = {{ fs = [{{ mode = "ro", path = "{GUESTS}" }}] }}

[capabilities.providers.broken]
command = ["/nonexistent/bridge"]

[skills.foo.capability_provider]
enabled = true
"""


async def _get(inside: InProcess, path: str) -> Any:
    answer = await inside.client.get(f"/api/v1/services{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _ready(inside: InProcess) -> dict[str, Any]:
    for _ in range(2000):
        found = {one["name"]: one for one in (await _get(inside, "/providers"))["providers"]}
        if len(found) == 3 and found["gog"]["available"] and found["caged"]["available"]:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("the providers never came")


def _services(inside: InProcess) -> AccountService:
    found = inside.daemon.services.subsystems.accounts
    assert isinstance(found, AccountService)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@requirement("SC-AMB-30")
async def test_the_operator_sees_providers_and_accounts_and_takes_them_back(home: Path) -> None:
    async with daemon_in_process(home, config=_config(home)) as inside:
        providers = await _ready(inside)
        assert providers["gog"]["caged"] is False
        assert providers["caged"]["caged"] is True
        assert providers["broken"]["available"] is False
        assert [one["id"] for one in providers["gog"]["capabilities"]] == ["gog.email"]

        services = _services(inside)
        token = services.tokens.mint("alice", routing=RoutingClaims(chat_type="private"))

        async def call(method: str, **params: Any) -> Any:
            return await services.rpc.call(
                f"capability.{method}", {"context_token": token, **params}
            )

        flow = await call("auth.begin", capability="gog.email", account_hint="work")
        await call("auth.complete", flow_id=flow["flow_id"], code="c")
        whoami = {"capability": "gog.email", "operation": "whoami"}
        assert (await call("invoke", **whoami))["output"]["user"] == "alice"

        # Consent: asked for, shown, given once.
        send = {"capability": "gog.email", "operation": "send", "input": {"to": "bob"}}
        with raises_code("capability_mutation_not_confirmed", CapabilityError):
            await call("invoke", **send)
        [plan] = (await _get(inside, "/approvals"))["approvals"]
        assert plan["status"] == "presented"
        assert "to: bob" in plan["summary"]
        answer = await inside.client.post(
            f"/api/v1/services/approvals/{plan['plan_id']}", json={"decision": "confirm"}
        )
        assert answer.status_code == 200, answer.text
        assert (await call("invoke", **send))["ok"] is True

        [account] = (await _get(inside, "/accounts"))["accounts"]
        assert account["user_id"] == "alice"
        assert account["account_ref"] == "acct_work"
        assert set(account) == {
            "user_id",
            "capability",
            "account_ref",
            "account_name",
            "account_email",
            "created_at",
            "status",
            "status_reason",
            "status_since",
        }
        assert (await inside.client.post("/api/v1/services/vault/rotate")).status_code == 200
        revoked = {"user_id": "alice", "capability": "gog.email", "account_ref": "acct_work"}
        answer = await inside.client.post("/api/v1/services/accounts/revoke", json=revoked)
        assert answer.status_code == 200, answer.text
        again = await inside.client.post("/api/v1/services/accounts/revoke", json=revoked)
        assert again.status_code == 404
        assert (await _get(inside, "/accounts"))["accounts"] == []
        fresh = await inside.client.post("/api/v1/services/providers/gog/refresh")
        assert fresh.status_code == 200
        assert (
            await inside.client.post("/api/v1/services/providers/none/refresh")
        ).status_code == 404

        rows = {row.id: row for row in await services.checks()}
        assert rows["services.gog"].status == "warn"  # it runs without a cage
        assert rows["services.caged"].status == "ok"
        assert rows["services.broken"].status == "fail"
        named = [row for row in rows.values() if "foo" in row.id]
        assert len(named) == 1
        assert "command" in named[0].cause

        audit = (await inside.client.get("/api/v1/audit?limit=200")).json()
        names = {one["event"] for one in audit["items"]}
        assert {"capability_invoke", "capability_account_revoked"} <= names
        assert {"capability_consent_decided", "capability_vault_rotated"} <= names


@requirement("SC-CFG-03", "SC-CFG-06", "SC-CFG-07", "SC-PROV-11", "SC-SEC-05")
async def test_only_the_operators_config_says_what_is_executed(home: Path) -> None:
    python, bridge = "/usr/bin/python3", GUESTS / "bridge_g1.py"
    skill = home / "skills" / "gog"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        "---\ndescription: Mail.\ncapabilities: [gog.email]\ncommand: [/bin/evil]\nimage: evil\n"
        "runtime: evil\n"
        "capability_provider: {command: [/bin/evil]}\n---\n",
        encoding="utf-8",
    )
    config = f"""{ANY_PORT}
[skills.gog]
enabled = true

[capabilities.providers.gog]
command = ["{python}", "{bridge}", "explicit"]

[skills.kept]
enabled = true
capability_provider = {{ enabled = false, namespace = "kept", command = ["{python}", "{bridge}"] }}

[skills.off]
enabled = false
capability_provider = {{ enabled = true, namespace = "off", command = ["{python}", "{bridge}"] }}
"""
    with capture_logs() as logs:
        async with daemon_in_process(home, config=config) as inside:
            services = _services(inside)
            for _ in range(2000):
                if services.manager.registry.get("gog.email") is not None:
                    break
                await asyncio.sleep(0.01)
            token = services.tokens.mint("alice", routing=RoutingClaims(chat_type="private"))
            listed = await services.rpc.call(
                "capability.list", {"context_token": token, "include_unavailable": True}
            )
            rows: Any = listed["capabilities"]
            assert [row["id"] for row in rows] == ["gog.email"]
            assert [one["namespace"] for one in services.providers()] == ["gog"]
            params = {"capability": "gog.email", "operation": "ping", "context_token": token}
            assert (await services.rpc.call("capability.invoke", {**params}))["ok"] is True
            project = make_project(
                home.parent / "work",
                "version: 1\nproject: sample\nprimary:\n  model: default\n  system_prompt: x\n"
                "capabilities: {providers: {evil: {command: [/bin/evil]}}}\n"
                "skills: {gog: {capability_provider: {command: [/bin/evil]}}}\n",
            )
            loaded = await inside.client.post(
                "/api/v1/projects", json={"root": str(project), "trust": True}
            )
            assert "capabilities" in loaded.text
            assert "config.toml" in loaded.text
            assert [one["namespace"] for one in services.providers()] == ["gog"]
            assert (await services.rpc.call("capability.invoke", {**params}))["ok"] is True
            await inside.daemon.services.audit.flush()
            audit = (await inside.client.get("/api/v1/audit?limit=200")).json()
    started = [
        one["data"]["argv"]
        for one in audit["items"]
        if one["event"] == "cage.started" and one["data"]["what"].startswith("bridge")
    ]
    assert started
    assert all(argv == [python, str(bridge), "explicit"] for argv in started)
    [ignored] = [one for one in logs if one["event"] == "skill.ignored"]
    assert set(ignored["fields"]) == {"capability_provider", "command", "image", "runtime"}


@requirement("SC-SEC-03")
async def test_no_route_of_the_daemon_gives_a_credential_or_invokes(home: Path) -> None:
    async with daemon_in_process(home) as inside:
        drawn = (await inside.client.get("/api/v1/openapi.json")).json()
        paths = [path for path in drawn["paths"] if "/services" in path]
        assert sorted(paths) == [
            "/api/v1/services/accounts",
            "/api/v1/services/accounts/check",
            "/api/v1/services/accounts/revoke",
            "/api/v1/services/approvals",
            "/api/v1/services/approvals/{plan_id}",
            "/api/v1/services/links",
            "/api/v1/services/links/{flow_id}",
            "/api/v1/services/links/{flow_id}/complete",
            "/api/v1/services/links/{flow_id}/poll",
            "/api/v1/services/providers",
            "/api/v1/services/providers/{namespace}/refresh",
            "/api/v1/services/shares",
            "/api/v1/services/shares/{share_id}",
            "/api/v1/services/vault/rotate",
        ]
        # Those of keys at the gate are the operator's, and tell of them without their values.
        gate = "/api/v1/credentials"
        every = " ".join(path for path in drawn["paths"] if not path.startswith(gate))
        for word in ("invoke", "credential", "capability."):
            assert word not in every
        shapes = drawn["components"]["schemas"]
        own = [name for name in shapes if "LinkedAccountOut" in name or "ApprovalOut" in name]
        assert len(own) >= 2
        for name in own:
            fields = set(shapes[name]["properties"])
            assert not fields & {"token", "secret", "credential", "refresh_token", "sealed"}
        tool_service: Any = inside.daemon.services.subsystems.tools
        names = tool_service.registry.names()
        assert names
        assert not any("capability" in name or "service" in name for name in names)
