"""What policies put on requests to MCP servers behind HTTP: headers, and tokens that they exchange.

The server is made with the official SDK and writes down what reaches it. People come with access
tokens of a provider that other people wrote, which exchanges them (RFC 8693).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from requirements.marker import whole
from whole.harness.daemon import PATIENCE_S, Daemon, wait_for
from whole.harness.mcp import python
from whole.harness.model import ModelServer
from whole.harness.openid import EXCHANGER, EXCHANGER_SECRET, LOCAL, OpenIdServer
from whole.harness.policies import PRE, PolicySite, changes, entry, spy
from whole.harness.project import Project

GUEST = Path(__file__).parents[2] / "guests" / "header_mcp_server.py"
FAR = 32_503_680_000
STATIC = "Bearer of-the-operator"


class DeskServer:
    """The MCP server, and what it was sent."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        journal.touch()
        self.process = subprocess.Popen(
            [sys.executable, str(GUEST), str(journal)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().decode().strip()

    def rows(self, method: str) -> list[dict[str, Any]]:
        """Return the requests of one method, oldest first."""
        lines = self._journal.read_text(encoding="utf-8").splitlines()
        return [one for one in map(json.loads, lines) if one["message"].get("method") == method]

    def last(self, method: str = "tools/call") -> dict[str, Any]:
        """Return the headers of the last request of a method."""
        found: dict[str, Any] = self.rows(method)[-1]["headers"]
        return found


@pytest.fixture(scope="module")
def outside(module_path: Path) -> Iterator[DeskServer]:
    made = DeskServer(module_path / "requests.jsonl")
    yield made
    made.process.terminate()
    made.process.wait(PATIENCE_S)
    assert made.process.stdout is not None
    made.process.stdout.close()


@pytest.fixture(scope="module")
def provider(module_path: Path) -> Iterator[OpenIdServer]:
    made = OpenIdServer(module_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def daemon(
    module_path: Path,
    model: ModelServer,
    site: PolicySite,
    outside: DeskServer,
    provider: OpenIdServer,
) -> Iterator[Daemon]:
    config = (
        f'[mcp.servers.desk]\nurl = "{outside.url}"\nenv = {{ MCP_AUTHORIZATION = "{STATIC}" }}\n'
        + site.config_toml('headers = ["X-Tenant"]\ndelegate_tokens = true\n')
        + provider.config()
    )
    local = LOCAL + model.local_toml()
    made = Daemon(module_path / "h", config=config, local=local, env={"XSECRET": EXCHANGER_SECRET})
    made.start()
    site.daemon = made
    wait_for(site.loads)
    wait_for(lambda: made.get("/mcp/servers")["servers"][0]["state"] == "running", "the server")
    yield made
    made.close()


@pytest.fixture(scope="module")
def work(daemon: Daemon, module_path: Path) -> Project:
    return daemon.load(Project(module_path / "work", tools={"desk.*": {"enabled": True}}))


PING = {"agent": "primary", "tool": "desk.ping", "params": {}}


@whole("EX-MERGE-08")
def test_a_header_that_one_policy_sets_is_read_by_the_next_and_goes_out(
    work: Project, site: PolicySite, outside: DeskServer
) -> None:
    headers = "{**ext.http.headers, 'X-Case': '17', 'Mcp-Session-Id': 'forged', 'Host': 'evil'}"
    site.put(
        changes(f"http=HttpExtension(headers={headers})", "write_headers", name="sets"),
        spy("reads", "read_headers"),
    )
    at = f"/projects/{work.id}/tools/call"
    work.daemon.post(at, PING, headers={"X-Tenant": "acme"})
    assert site.view("reads")["http"]["headers"]["X-Case"] == "17"
    sent = outside.last()
    assert sent["x-case"] == "17"
    assert sent["authorization"] == STATIC
    assert "x-tenant" not in sent, "what a caller sent goes nowhere by itself"
    assert sent["mcp-session-id"] != "forged"
    assert sent["host"] in outside.url
    assert "kaged/headers" not in json.dumps(outside.rows("tools/call")[-1]["message"])
    # The second call, without the policy, has nothing of the first.
    site.put(spy("reads", "read_headers"))
    work.call("desk.ping")
    assert "x-case" not in outside.last()


@whole("EX-HOOK-08")
@pytest.mark.parametrize("capability", [[], ["write_headers"]])
def test_a_token_in_the_headers_replaces_the_old_one_for_who_may_write_them(
    work: Project, site: PolicySite, outside: DeskServer, capability: list[str]
) -> None:
    """The guide's example of token delegation, run twice with the two configurations."""
    site.put(
        changes("http=HttpExtension(headers={'x-kept': '1'})", "write_headers", name="first"),
        changes(
            "http=HttpExtension(headers={**(ext.http.headers if ext.http else {}),"
            " 'authorization': 'Bearer delegated'})",
            *capability,
            name="delegates",
        ),
    )
    work.call("desk.ping")
    sent = outside.last()
    assert sent["authorization"] == ("Bearer delegated" if capability else STATIC)
    assert sent["x-kept"] == "1"


def test_prompts_and_resources_of_the_server_carry_them_too(
    daemon: Daemon, work: Project, site: PolicySite, outside: DeskServer
) -> None:
    site.put(
        entry("grants", "Grants", hooks=["token_delegate"]),
        source=GRANTS,
    )
    python(
        daemon,
        work,
        ("getPrompt", {"name": "desk.explain", "arguments": {"topic": "pi"}}),
        ("readResource", {"uri": "kaged://mcp/desk/desk%3A%2F%2Fone"}),
    )
    for method, token in (("prompts/get", "t-prompt"), ("resources/read", "t-resource")):
        sent = outside.last(method)
        assert (sent["authorization"], sent["x-by"]) == (f"Bearer {token}", "me")


GRANTS = """
from cpex.framework.hooks.identity import DelegationResult


class Grants(Plugin):
    async def token_delegate(self, payload, context):
        return PluginResult(modified_payload=DelegationResult(
            delegated_token="t-" + payload.target_type, forwarded_headers={"x-by": "me"}))
"""


def exchange(provider: OpenIdServer, outside: DeskServer, **more: Any) -> dict[str, Any]:
    """Return the entry of the policy that exchanges tokens."""
    return entry(
        "exchange",
        "kaged.pipeline.policies.TokenExchange",
        hooks=["token_delegate"],
        config={
            "token_url": f"{provider.url}/token",
            "client_id": EXCHANGER,
            "client_secret": "{{ env.XSECRET }}",
            "audiences": {outside.url: "urn:desk"},
            **more,
        },
    )


def test_a_persons_token_becomes_one_for_the_server_that_is_called(
    daemon: Daemon, work: Project, site: PolicySite, outside: DeskServer, provider: OpenIdServer
) -> None:
    site.put(exchange(provider, outside))

    def token(person: str) -> str:
        return provider.signed(
            {
                "iss": provider.url, "aud": daemon.url.rstrip("/"), "sub": person, "client_id": "x",
                "iat": 1_700_000_000, "exp": FAR, "jti": f"t-{person}", "groups": ["staff"],
            }
        )  # fmt: skip

    def ping(person: str) -> httpx.Response:
        Daemon.spoken += 1
        return httpx.post(
            f"{daemon.url}/api/v1/projects/{work.id}/tools/call",
            json=PING,
            headers={"Authorization": f"Bearer {token(person)}"},
            timeout=PATIENCE_S,
        )

    def sent() -> dict[str, Any]:
        scheme, _, given = outside.last()["authorization"].partition(" ")
        assert scheme == "Bearer"
        key = RSAKey.import_key(provider.settings["keys"][0])
        return dict(jwt.decode(given, key).claims)

    assert ping("ann").is_success
    first = sent()
    assert (first["sub"], first["aud"], first["act"]) == ("ann", "urn:desk", {"sub": EXCHANGER})
    assert ping("ann").is_success
    assert sent() == first, "a token is asked for once while it lasts"
    assert ping("bob").is_success
    assert (sent()["sub"], sent()["aud"]) == ("bob", "urn:desk")
    # Whom the provider gives nothing, and who has no token, cannot call.
    count = len(outside.rows("tools/call"))
    provider.change(no_exchange="carl")
    refused = ping("carl").json()["error"]
    assert refused["code"] == "pipeline_refused"
    assert "answered invalid_request" in refused["message"]
    alone = work.fail("desk.ping")
    assert "needs a token of the person" in alone["message"]
    assert len(outside.rows("tools/call")) == count
    # The token is nowhere but on its way.
    kept = (daemon.log() + json.dumps(daemon.audit())).count(token("ann").rpartition(".")[2])
    assert kept == 0


def test_a_dry_run_asks_for_no_token(
    daemon: Daemon, module_path: Path, work: Project, site: PolicySite, outside: DeskServer,
    provider: OpenIdServer,
) -> None:  # fmt: skip
    dry = Project(module_path / "dry", tools={"desk.*": {"enabled": True}}, dry_run=True)
    daemon.load(dry)
    site.put(exchange(provider, outside))
    count = len(outside.rows("tools/call"))
    # The operator has no token to exchange, so that asking for one fails.
    assert "needs a token of the person" in work.fail("desk.ping")["message"]
    said = dry.call("desk.ping")
    assert said["dry_run"] is True
    assert said["tool"] == "desk.ping"
    assert len(outside.rows("tools/call")) == count


RESOLVES = """
class Resolves(Plugin):
    async def identity_resolve(self, payload, context):
        return None
"""


def test_hooks_that_nothing_fires_are_declined_with_the_reason(
    work: Project, site: PolicySite, daemon: Daemon
) -> None:
    said = site.refused(entry("who", "Resolves", hooks=["identity_resolve"]), source=RESOLVES)
    assert "nothing in the daemon fires identity_resolve" in said[0]
    assert "never by a policy" in said[0]
    done = daemon.cli("pipeline", "check", "--json", code=6)
    (problem,) = json.loads(done.out)["problems"]
    assert problem["code"] == "pipeline_hook_not_fired"
    site.put(spy("reads", hooks=[PRE]))
    assert work.call("desk.ping")
