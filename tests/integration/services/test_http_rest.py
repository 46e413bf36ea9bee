"""http.rest against a real API behind a real OAuth 2.1 server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fakes.oauth_server import CLIENT_ID, CLIENT_SECRET, OAuthLab, oauth_server
from fakes.provider_lab import ProviderLab
from kaged.base import ManualClock, SystemClock
from kaged.services.contract import CapabilityAuthCompleteResult, CapabilityAuthPending
from kaged.services.errors import (
    CapabilityAuthFlowDenied,
    CapabilityAuthFlowExpired,
    CapabilityAuthFlowInvalid,
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
    CapabilityRateLimited,
)
from kaged.services.providers.http_rest import HttpRest, RestSettings
from kaged.services.providers.linkpage import LinkPage
from kaged.services.providers.oauth import OAuthClient
from kaged.services.providers.oauth_server import OAuthSettings
from kaged.services.providers.rest_auth import RestAuth, RestCredentials
from kaged.services.providers.rest_description import load_description
from raising import raises_code

TOML = """\
description = "A tracker"

[operations.get_issue]
description = "Read one issue."
path = "/api/projects/{project}/issues/{number}"
parameters.project = { in = "path", type = "string" }
parameters.number = { in = "path", type = "integer" }
parameters.labels = { type = "array", items = { type = "string" } }
parameters.open = { type = "boolean" }

[operations.add_issue]
description = "Open an issue."
method = "POST"
path = "/api/issues"
body = { type = "object", properties = { title = { type = "string" } }, required = ["title"] }
"""
SPECIAL = ("leak", "away", "broken", "busy", "missing", "long", "words")


@pytest.fixture(scope="module")
def oauth() -> Iterator[OAuthLab]:
    with oauth_server() as running:
        yield running


def make(oauth: OAuthLab, folder: Path, *, device: bool = False, clock: Any = None) -> ProviderLab:
    file = folder / "tracker.toml"
    extra = "".join(
        f'\n[operations.{one}]\ndescription = "x"\npath = "/api/{one}"\n' for one in SPECIAL
    )
    file.write_text(TOML + extra, encoding="utf-8")
    clock = clock or SystemClock()
    settings = OAuthSettings(
        client_id=CLIENT_ID,
        token_url=f"{oauth.url}/token",
        authorization_url="https://login.example/authorize",
        device_url=f"{oauth.url}/device" if device else None,
        revocation_url=f"{oauth.url}/revoke",
        userinfo_url=f"{oauth.url}/userinfo",
        scopes=("issues",),
    )
    provider = HttpRest(
        RestSettings("tracker", "issues", load_description(file, base_url=oauth.url)),
        page=LinkPage(clock),
        oauth=OAuthClient(settings, clock=clock, client_secret=CLIENT_SECRET, timeout_s=30),
    )
    return ProviderLab(provider, "issues")


async def linked(oauth: OAuthLab, folder: Path, **more: Any) -> ProviderLab:
    lab = make(oauth, folder, **more)
    begun = await lab.begin("work")
    callback = oauth.visit(begun.auth_url, "ann")
    await lab.complete(begun, parse_qs(urlsplit(callback).query)["code"][0], "work")
    return lab


async def test_an_account_is_linked_with_pkce_and_used(oauth: OAuthLab, tmp_path: Path) -> None:
    lab = make(oauth, tmp_path)
    begun = await lab.begin("work")
    asked = parse_qs(urlsplit(begun.auth_url).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["state"] == [begun.expected_callback_state]
    assert begun.uses_pkce
    assert str(begun.flow_state["code_verifier"]) not in begun.auth_url
    assert CLIENT_SECRET not in begun.auth_url
    callback = oauth.visit(begun.auth_url, "ann")
    code = parse_qs(urlsplit(callback).query)["code"][0]
    done = await lab.complete(begun, code, "work")
    assert done.account_ref == "acct_work"
    assert done.metadata == {"account_email": "ann@example.org", "account_name": "Ann"}
    assert done.credential_material == {}
    said = await lab.invoke("get_issue", project="a/b c", number=7, labels=["x", "y"], open=True)
    assert said["status"] == 200
    assert said["next_page"] == "page=2"
    assert said["data"]["user"] == "ann"
    assert said["data"]["path"] == "/api/projects/a%2Fb%20c/issues/7"
    assert said["data"]["query"] == {"labels": ["x", "y"], "open": ["true"]}
    with pytest.raises(CapabilityAuthFlowInvalid):  # a code works once
        await lab.complete(begun, code, "work")


async def test_a_stolen_code_is_worth_nothing_without_its_verifier(
    oauth: OAuthLab, tmp_path: Path
) -> None:
    lab = make(oauth, tmp_path)
    begun, other = await lab.begin(), await lab.begin()
    callback = oauth.visit(begun.auth_url, "ann")
    code = parse_qs(urlsplit(callback).query)["code"][0]
    with pytest.raises(CapabilityAuthFlowInvalid):
        await lab.complete(other, code)
    assert lab.credential.held is None


async def test_a_device_is_linked_by_asking(oauth: OAuthLab, tmp_path: Path) -> None:
    lab = make(oauth, tmp_path, device=True)
    begun = await lab.begin()
    assert begun.flow_type == "device_code"
    assert begun.user_code is not None
    assert begun.user_code in begun.auth_url
    device = oauth.device(begun.user_code)
    assert await lab.poll(begun) == CapabilityAuthPending(5)
    device.slow_down = True
    assert await lab.poll(begun) == CapabilityAuthPending(10)
    device.slow_down = False
    oauth.agree(begun.user_code, "bob")
    done = await lab.poll(begun)
    assert isinstance(done, CapabilityAuthCompleteResult)
    assert done.account_ref == "acct_bob@example.org"
    assert (await lab.invoke("add_issue", body={"title": "x"}))["data"]["user"] == "bob"


async def test_a_denied_and_an_expired_device_flow_say_so(oauth: OAuthLab, tmp_path: Path) -> None:
    lab = make(oauth, tmp_path, device=True)
    denied, expired = await lab.begin(), await lab.begin()
    oauth.device(str(denied.user_code)).denied = True
    oauth.device(str(expired.user_code)).expired = True
    with pytest.raises(CapabilityAuthFlowDenied):
        await lab.poll(denied)
    with pytest.raises(CapabilityAuthFlowExpired):
        await lab.poll(expired)


async def test_an_old_token_is_renewed_once_however_many_ask(
    oauth: OAuthLab, tmp_path: Path
) -> None:
    clock = ManualClock()
    lab = await linked(oauth, tmp_path, clock=clock)
    assert lab.credential.held is not None
    before = dict(lab.credential.held)
    clock.advance(3600 - 30)
    calls = [lab.invoke("get_issue", project="p", number=n) for n in range(5)]
    answers = await asyncio.gather(*calls)
    assert [one["status"] for one in answers] == [200] * 5
    assert lab.credential.renewals == 1
    assert lab.credential.held["refresh_token"] != before["refresh_token"]
    assert lab.credential.held["account_email"] == "ann@example.org"


async def test_a_token_refused_before_its_time_is_renewed_and_the_call_made_again(
    oauth: OAuthLab, tmp_path: Path
) -> None:
    lab = await linked(oauth, tmp_path)
    assert lab.credential.held is not None
    grant = oauth.registry.by_access(str(lab.credential.held["access_token"]))
    assert grant is not None
    grant.expires_at = 0
    assert (await lab.invoke("add_issue", body={"title": "x"}))["status"] == 200
    assert lab.credential.renewals == 1


async def test_withdrawn_access_asks_for_a_new_link_and_keeps_what_is_stored(
    oauth: OAuthLab, tmp_path: Path
) -> None:
    lab = await linked(oauth, tmp_path)
    for grant in oauth.registry.grants:
        grant.revoked = True
    held = dict(lab.credential.held or {})
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("get_issue", project="p", number=1)
    assert lab.credential.held == held


async def test_revoking_tells_the_server(oauth: OAuthLab, tmp_path: Path) -> None:
    lab = await linked(oauth, tmp_path)
    assert await lab.revoke() is True
    assert lab.credential.held is not None
    grant = oauth.registry.by_access(str(lab.credential.held["access_token"]))
    assert grant is not None
    assert grant.revoked


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("away", CapabilityBackendUnavailable),
        ("broken", CapabilityBackendUnavailable),
        ("busy", CapabilityRateLimited),
        ("missing", CapabilityInvalidInput),
        ("long", CapabilityInvalidInput),
    ],
)
async def test_what_the_service_says_becomes_one_of_our_errors(
    oauth: OAuthLab, tmp_path: Path, operation: str, error: type[Exception]
) -> None:
    lab = await linked(oauth, tmp_path)
    with pytest.raises(error) as caught:
        await lab.invoke(operation)
    if operation == "busy":
        assert isinstance(caught.value, CapabilityRateLimited)
        assert caught.value.data["retry_after_seconds"] == 7


async def test_words_that_are_no_json_come_as_text(oauth: OAuthLab, tmp_path: Path) -> None:
    lab = await linked(oauth, tmp_path)
    assert (await lab.invoke("words"))["data"] == "just words"


@pytest.mark.parametrize("project", [".", "..", ""])
async def test_a_parameter_cannot_climb_out_of_its_path(
    oauth: OAuthLab, tmp_path: Path, project: str
) -> None:
    lab = await linked(oauth, tmp_path)
    before = len(oauth.registry.api_requests)
    with pytest.raises(CapabilityInvalidInput):
        await lab.invoke("get_issue", project=project, number=1)
    assert len(oauth.registry.api_requests) == before


async def test_a_server_that_is_away_is_a_backend_error(oauth: OAuthLab, tmp_path: Path) -> None:
    lab = make(oauth, tmp_path)
    begun = await lab.begin()
    assert isinstance(lab.provider, HttpRest)
    gone = OAuthSettings(client_id="x", token_url="http://127.0.0.1:1/token")
    client = OAuthClient(gone, clock=SystemClock(), timeout_s=5)
    with pytest.raises(CapabilityBackendUnavailable):
        await client.complete(begun.flow_state, "code")
    with pytest.raises(CapabilityBackendUnavailable):
        await client.begin()


OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Pets"},
    "servers": [{"url": "https://pets.example/v1"}],
    "paths": {
        "/pets/{petId}": {
            "parameters": [{"$ref": "#/components/parameters/PetId"}],
            "get": {
                "operationId": "getPet",
                "summary": "Read a pet.",
                "parameters": [
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "full", "in": "query", "schema": {"type": "boolean"}},
                ],
            },
            "delete": {"operationId": "dropPet"},
        },
        "/pets": {
            "post": {
                "operationId": "addPet",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}
                    },
                },
            }
        },
    },
    "components": {
        "parameters": {
            "PetId": {"name": "petId", "in": "path", "required": True, "schema": {"type": "string"}}
        },
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "parent": {"$ref": "#/components/schemas/Pet"},
                },
            }
        },
    },
}


def test_openapi_becomes_operations(tmp_path: Path) -> None:
    file = tmp_path / "pets.json"
    file.write_text(json.dumps(OPENAPI), encoding="utf-8")
    api = load_description(file)
    assert api.base_url == "https://pets.example/v1"
    assert {name: one.mutating for name, one in api.operations.items()} == {
        "getPet": False,
        "dropPet": True,
        "addPet": True,
    }
    schema: Any = api.operations["getPet"].input_schema()
    assert set(schema["properties"]) == {"petId", "full"}
    assert schema["required"] == ["petId"]
    body: Any = api.operations["addPet"].input_schema()["properties"]
    assert body["body"]["properties"]["parent"] == {}
    assert list(load_description(file, only=["getPet"]).operations) == ["getPet"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[operations]",
        '[operations.x]\npath = "/x"',
        '[operations.x]\ndescription = "x"\npath = "http://evil.example/"',
        '[operations.x]\ndescription = "x"\npath = "/{a}"',
        '[operations.x]\ndescription = "x"\npath = "/x"\nmethod = "TRACE"',
        'base_url = "http://example.org"\n[operations.x]\ndescription = "x"\npath = "/x"',
        'base_url = "https://u:p@example.org"\n[operations.x]\ndescription = "x"\npath = "/x"',
        '[operations."a b"]\ndescription = "x"\npath = "/x"',
        '[operations.x]\ndescription = "x"\npath = "/x"\nparameters.a = { type = "object" }',
        "not toml at all",
    ],
)
def test_a_description_that_cannot_be_offered_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "api.toml"
    file.write_text(text, encoding="utf-8")
    base_url = None if "base_url" in text else "https://api.example"
    with pytest.raises(CapabilityInvalidInput):
        load_description(file, base_url=base_url)


def test_references_to_other_documents_are_not_followed(tmp_path: Path) -> None:
    changed = json.loads(json.dumps(OPENAPI))
    place = changed["paths"]["/pets"]["post"]["requestBody"]["content"]["application/json"]
    place["schema"] = {"$ref": "https://evil.example/schema.json"}
    file = tmp_path / "pets.yaml"
    file.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(CapabilityInvalidInput, match="other documents"):
        load_description(file)


async def test_a_plain_token_is_linked_on_the_page(oauth: OAuthLab, tmp_path: Path) -> None:
    lab = await linked(oauth, tmp_path)
    assert lab.credential.held is not None
    token = str(lab.credential.held["access_token"])
    settings = RestSettings(
        "tracker",
        "issues",
        load_description(tmp_path / "tracker.toml", base_url=oauth.url),
        credentials=RestCredentials(RestAuth.TOKEN),
        check_path="/userinfo",
    )
    page = LinkPage(SystemClock())
    plain = ProviderLab(HttpRest(settings, page=page), "issues")
    await plain.credential.put({"username": "ann", "password": token})
    assert (await plain.invoke("get_issue", project="p", number=1))["data"]["user"] == "ann"
    await plain.credential.put({"username": "ann", "password": "nonsense"})
    with raises_code("capability_auth_required", CapabilityError):
        await plain.invoke("get_issue", project="p", number=1)
    with pytest.raises(CapabilityInvalidInput):
        HttpRest(
            settings,
            page=page,
            oauth=OAuthClient(
                OAuthSettings(client_id="x", token_url="https://x.example"),
                clock=SystemClock(),
                timeout_s=1,
            ),
        )
