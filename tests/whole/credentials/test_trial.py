"""`kaged credential test`, and programs that find the cage's authority in a store of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whole.harness.bound_server import BoundServer
from whole.harness.daemon import Daemon
from whole.harness.keys import VALUE, Keys, out
from whole.harness.model import ModelServer

SECTION = """\
[credentials.host]
hosts = ["localhost:{port}"]
ca_file = "{ca_file}"
place = ["{place}"]
rules = ["GET /echo", "GET /away"]
as = {{ env = ["API_KEY"] }}
for = {{ projects = ["shop"] }}
"""
LOCAL = '[credentials.host]\nvalue = "${HOST_VALUE}"\n'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BoundServer]:
    """Yield a server that wants the value."""
    made = BoundServer(tmp_path / "outside", VALUE)
    yield made
    made.close()


def section(server: BoundServer, place: str = "bearer") -> str:
    """Return the operator's section that binds the credential to a server."""
    return SECTION.format(port=server.port, ca_file=server.ca_file, place=place)


@pytest.fixture
def keys(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path, server: BoundServer
) -> Keys:
    """Return a running daemon with the credential `host`."""
    local = model.local_toml()
    daemon = own(config=section(server), local=local + LOCAL, env={"HOST_VALUE": VALUE})
    daemon.start()
    return Keys(daemon, local, tmp_path)


@pytest.mark.parametrize("place", ["bearer", "basic:ann", "header:X-Api-Key"])
def test_the_host_is_asked_as_a_program_would_ask_it(
    keys: Keys, server: BoundServer, place: str
) -> None:
    keys.configure(section(server, place), LOCAL)
    said = keys.daemon.cli("credential", "test", "host", "--path", "/echo")
    assert said.out == f"localhost:{server.port} answered 200 to GET /echo.\n"
    assert len(server.seen) == 1
    assert VALUE not in said.out + said.err
    (row,) = keys.daemon.audit("credential.tested")
    assert row["data"]["status"] == 200
    (used,) = keys.daemon.audit("credential.used")
    assert used["data"]["what"] == "test of host"


def test_a_wrong_value_a_rule_and_a_redirect_are_told_apart(
    keys: Keys, server: BoundServer
) -> None:
    refused = keys.daemon.cli("credential", "test", "host", "--path", "/other", code=8)
    assert "matches no rule of the credential host" in refused.out
    assert "[credential.rule]" in refused.out
    assert server.seen == []
    moved = keys.daemon.cli("credential", "test", "host", "--path", "/away", code=0)
    assert "answered 302" in moved.out  # and it is not followed
    keys.configure(section(server), '[credentials.host]\nvalue = "another-value"\n')
    wrong = keys.daemon.cli("credential", "test", "host", "--path", "/echo", code=8)
    assert "answered 401" in wrong.out
    keys.configure(section(server), "")
    none = keys.daemon.cli("credential", "test", "host", "--path", "/echo", code=8)
    assert "[credential.no_value]" in none.out
    server.close()
    gone = keys.daemon.cli("credential", "test", "host", "--path", "/echo", code=8)
    assert "Nothing was sent" in gone.out or "was not reached" in gone.out


def test_programs_trust_the_cages_authority_without_an_option(
    keys: Keys, server: BoundServer
) -> None:
    shop = keys.project("shop", "host")
    header = '--header="Authorization: Bearer $API_KEY"'
    said = out(shop, f"wget -qO- {header} {server.url}/echo && echo by wget")
    assert said.endswith("by wget\n")
    # Without the variables, by the system's own store.
    ask = f'curl -sSo /dev/null -w "%{{http_code}}" -H "Authorization: Bearer $K" {server.url}/echo'
    assert out(shop, f"env -i PATH=$PATH K=$API_KEY sh -c '{ask}'") == "200"
    assert VALUE not in said
