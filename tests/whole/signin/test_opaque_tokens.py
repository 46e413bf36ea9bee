"""Access tokens that only the provider can tell about, and tokens of people who signed out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from whole.harness.daemon import PATIENCE_S, Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.openid import LOCAL, Browser, OpenIdServer

KEPT_S = 10


@pytest.fixture(scope="module")
def daemon(module_path: Path, provider: OpenIdServer, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon that asks the provider about tokens, and is told who signs out."""
    config = provider.config(f"introspection_seconds = {KEPT_S}\n")
    made = Daemon(module_path / "h", config=config, local=LOCAL + model.local_toml())
    made.start()
    provider.tell(made)
    yield made
    made.close()


def _ask(daemon: Daemon, token: str) -> tuple[int, str]:
    """Ask who one is; returns the status, and the id or the code of the error."""
    Daemon.spoken += 1
    got = httpx.get(
        f"{daemon.url}/api/v1/auth/whoami",
        headers={"Authorization": f"Bearer {token}"},
        timeout=PATIENCE_S,
        trust_env=False,
    )
    said = got.json()
    return got.status_code, said["error"]["code"] if got.is_error else said["operator_id"]


def test_an_opaque_token_is_its_persons_until_it_is_taken_back(
    daemon: Daemon, provider: OpenIdServer
) -> None:
    provider.change(opaque=True)
    ann, bob = (provider.access_token(one, daemon.url) for one in ("ann", "bob"))
    assert "." not in ann + bob
    begun, before = time.monotonic(), provider.introspections
    for _ in range(5):
        assert _ask(daemon, ann) == (200, "ann")
        assert _ask(daemon, bob) == (200, "bob")
    # Each was asked about once, and again only when the time of its answer was over.
    skew_s = 0.1  # between the daemon's processor and ours
    rounds = 1 + int((time.monotonic() - begun + skew_s) / KEPT_S)
    assert provider.introspections - before <= 2 * rounds
    provider.revoke(ann)
    wait_for(lambda: _ask(daemon, ann)[0] == 401, "the end of the token")
    assert _ask(daemon, bob) == (200, "bob")
    # Of others, and of nobody.
    assert _ask(daemon, provider.access_token("ann", "http://127.0.0.1/other"))[0] == 401
    assert _ask(daemon, provider.robot_token(daemon.url))[0] == 401
    assert _ask(daemon, bob[:-1] + ("A" if bob[-1] != "A" else "B"))[0] == 401
    assert _ask(daemon, provider.access_token("eve", daemon.url)) == (403, "sign_in_not_allowed")


@pytest.mark.parametrize("opaque", [False, True])
def test_a_token_given_before_its_person_signed_out_is_refused(
    daemon: Daemon, provider: OpenIdServer, browser: Callable[[], Browser], opaque: bool
) -> None:
    provider.change(opaque=opaque)
    opened = browser()
    assert opened.sign_in("ann").status_code == 200
    ann, bob = (provider.access_token(one, daemon.url) for one in ("ann", "bob"))
    assert _ask(daemon, ann) == (200, "ann")
    assert _ask(daemon, bob) == (200, "bob")
    opened.sign_out_everywhere()
    wait_for(lambda: _ask(daemon, ann)[0] == 401, "the end of the token")
    assert _ask(daemon, bob) == (200, "bob")
    daemon.kill()
    daemon.start()
    assert _ask(daemon, ann)[0] == 401
    # Who signs in again has a new one.
    provider.tell(daemon)
    wait_for(
        lambda: _ask(daemon, provider.access_token("ann", daemon.url)) == (200, "ann"), "a new one"
    )


@pytest.mark.parametrize("opaque", [False, True])
def test_the_operator_signs_a_person_out_and_tokens_given_before_count_no_more(
    daemon: Daemon, provider: OpenIdServer, browser: Callable[[], Browser], opaque: bool
) -> None:
    provider.change(opaque=opaque)
    opened, others = browser(), browser()
    assert opened.sign_in("ann").status_code == 200
    assert others.sign_in("bob").status_code == 200
    ann, bob = (provider.access_token(one, daemon.url) for one in ("ann", "bob"))
    assert (_ask(daemon, ann), _ask(daemon, bob)) == ((200, "ann"), (200, "bob"))
    done = daemon.cli("people", "sign-out", "ann", "--json").json
    assert done["sessions"] >= 1
    assert _ask(daemon, ann)[0] == 401
    assert opened.refused("GET", "/api/v1/auth/whoami") == (401, "unauthenticated")
    # The second person is not touched, and she may come again: with a new one.
    assert _ask(daemon, bob) == (200, "bob")
    assert others.get("/auth/whoami")["operator_id"] == "bob"
    row = daemon.audit("access.signed_out")[-1]["data"]
    assert (row["reason"], row["person_id"]) == ("operator", "ann")
    wait_for(
        lambda: _ask(daemon, provider.access_token("ann", daemon.url)) == (200, "ann"), "a new one"
    )
    assert _ask(daemon, ann)[0] == 401
