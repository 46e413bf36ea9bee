"""Capabilities: which words are one, what the operator is shown, and what network they open."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.guests import Guest
from whole.harness.project import Project

CONNECTS = """
from kit import *
import socket, urllib.request
greet()
def on(message):
    host, port = message["params"]["to"]
    proxy = os.environ.get("http_proxy") or os.environ.get("HTTP_PROXY")
    said = {"proxy": proxy, "names": sorted(os.environ)}
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/", timeout=5) as got:
            said["body"] = got.read().decode()
    except Exception as error:
        said["failed"] = f"{type(error).__name__}: {error}"
    try:
        with socket.create_connection((host, port), timeout=3) as link:
            link.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            said["direct"] = link.recv(1000).decode()
    except OSError as error:
        said["direct_failed"] = str(error)
    answer(message, said)
serve(on)
"""


class Server:
    """A server on the machine's loopback that answers everybody and counts them."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.visits = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            with link:
                self.visits += 1
                link.settimeout(5)
                try:
                    link.recv(65536)
                    link.sendall(
                        b"HTTP/1.0 200 OK\r\nContent-Length: 11\r\nConnection: close\r\n\r\n"
                        b"the machine"
                    )
                except OSError:
                    continue

    def close(self) -> None:
        """Stop listening."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@pytest.fixture
def servers() -> Iterator[Callable[[], Server]]:
    """Yield a maker of servers on the machine's loopback."""
    made: list[Server] = []

    def make() -> Server:
        made.append(Server())
        return made[-1]

    yield make
    for one in made:
        one.close()


def visit(guest: Guest, host: str, port: int) -> dict[str, Any]:
    """Let a plugin visit a server, by its proxy and directly."""
    got: dict[str, Any] = guest.call(to=[host, port])
    return got


GOOD = [
    "read:fs:/usr/share",
    "write:fs:/var/tmp",
    "read:fs:config:/memory",
    "write:fs:project:/docs",
    "exec:git:/usr/share",
    "net:example.org:443",
    "net:example.org:*",
    "net:localhost:8080",
    "net:*",
    "net:[]",
    "net: []",
    "net:h:1",
    "net:h:65535",
    "kaged:storage:read",
    "kaged:storage:write",
]
BAD: dict[str, list[Any]] = {
    "PH-CAP-10": [
        "read:/x",
        "fs:read:/x",
        "kaged:storage",
        "kaged:storage:delete",
        "net:",
        "",
        "READ:fs:/x",
        "exec:git",
        "everything",
        5,
        None,
        {"net": ["x"]},
        {"fs": []},
    ],
    "PH-CAP-11": ["read:fs:data", "write:fs:./data", "exec:git:work", "read:fs:", "read:fs:~/x"],
    "PH-AMB-05": ["read:fs:config:/../x", "read:fs:memory", "read:fs:config:x", "read:fs:/a/../b"],
    "PH-CAP-13": ["read:fs:/opt/*", "write:fs:/opt/?", "read:fs:/opt/[a]"],
    "PH-CAP-15": ["net:h:0", "net:h:70000", "net::443", "net:h:x", "net:h:-1", "net:h:65536"],
    "PH-AMB-02": [{"net": ["h:1"]}, {"net": [], "more": []}],
}


@pytest.mark.parametrize("text", GOOD)
@whole("PH-CAP-10", "PH-CAP-11", "PH-CAP-15")
def test_each_kind_of_capability_is_one(daemon: Daemon, tmp_path: Path, text: str) -> None:
    guest = Guest(daemon, tmp_path, capabilities=[text])
    shown = daemon.post("/plugins/preview", {"path": str(guest.root)})
    assert text.replace(" ", "") in json.dumps(shown)


@pytest.mark.parametrize(
    "text",
    [pytest.param(one, marks=whole(row)) for row, texts in BAD.items() for one in texts],
    ids=str,
)
def test_everything_else_is_none(daemon: Daemon, tmp_path: Path, text: object) -> None:
    guest = Guest(daemon, tmp_path, capabilities=[text])
    refused = daemon.error("POST", "/plugins/preview", {"path": str(guest.root)})
    assert refused["code"] == "config_invalid", refused
    assert any("capabilities" in str(one) for one in refused["data"]["problems"]), refused


@whole("PH-AMB-45")
def test_no_network_and_some_network_contradict_each_other(daemon: Daemon, tmp_path: Path) -> None:
    for pair in (["net:[]", "net:h:1"], ["net:*", "net:[]"], [{"net": []}, "net:h:*"]):
        guest = Guest(daemon, tmp_path, capabilities=pair)
        refused = daemon.error("POST", "/plugins/preview", {"path": str(guest.root)})
        assert refused["code"] == "config_invalid", (pair, refused)
        assert "net" in json.dumps(refused["data"]["problems"])


@whole("PH-CAP-14", "PH-CAP-06", "PH-AMB-65")
def test_the_operator_sees_every_capability_word_for_word_before_saying_yes(
    daemon: Daemon, tmp_path: Path
) -> None:
    wanted = ["read:fs:/usr/share", "exec:git:/usr/share", "net:*", "kaged:storage:write"]
    guest = Guest(daemon, tmp_path, capabilities=wanted)
    asked = daemon.cli("plugin", "install", str(guest.root), stdin="n\n", code=None)
    text = asked.out + asked.err
    for one in wanted:
        assert one in text, text
    lines = [line.strip() for line in text.splitlines()]
    assert [line for line in lines if "DANGEROUS" in line] == [lines[lines.index("- net:*") + 2]]
    assert "run the program git in /usr/share" in lines
    assert daemon.client.get(f"/api/v1/plugins/{guest.name}").status_code == 404, "a no is a no"
    guest.install()
    newer = [*wanted[:2], "write:fs:/var/tmp"]
    guest.write({}, **{**guest.manifest, "version": "1.1.0", "capabilities": newer})
    again = daemon.cli("plugin", "upgrade", str(guest.root), stdin="n\n", code=None)
    for one in newer:
        assert one in again.out + again.err
    assert daemon.get(f"/plugins/{guest.name}")["version"] == "1.0.0"


@whole("PH-CAP-07", "PH-CAGE-04", "PH-CAGE-15", "PH-SUP-13")
@pytest.mark.parametrize("capabilities", [[], ["net:[]"]])
def test_without_network_nothing_can_be_reached(
    daemon: Daemon, tmp_path: Path, servers: Callable[[], Server], capabilities: list[str]
) -> None:
    server = servers()
    guest = Guest(daemon, tmp_path, CONNECTS, capabilities=capabilities)
    assert guest.run()["state"] == "running"
    for host in ("localhost", "127.0.0.1", "192.0.2.1", "example.org"):
        got = visit(guest, host, server.port)
        assert "failed" in got, got
        assert "direct_failed" in got, got
        assert got["proxy"] is None
        assert not [name for name in got["names"] if "proxy" in name.lower()]
    assert server.visits == 0


@whole("PH-CAP-04", "PH-CAP-16", "PH-CAGE-04")
def test_a_grant_of_one_port_of_the_machine_opens_that_port_only(
    daemon: Daemon, tmp_path: Path, servers: Callable[[], Server]
) -> None:
    wanted, other = servers(), servers()
    guest = Guest(daemon, tmp_path, CONNECTS, capabilities=[f"net:localhost:{wanted.port}"])
    assert guest.run()["state"] == "running"
    got = visit(guest, "localhost", wanted.port)
    assert got.get("body") == "the machine" or "the machine" in got.get("direct", ""), got
    refused = visit(guest, "localhost", other.port)
    assert "body" not in refused
    assert "direct" not in refused
    assert wanted.visits >= 1
    assert other.visits == 0


@whole("PH-CAGE-04", "PH-CAP-06")
@pytest.mark.parametrize(
    ("capabilities", "words", "dangerous"),
    [
        ([], "has no network", False),
        (["net:[]"], "has no network", False),
        (["net:example.org:443"], "example.org", False),
        (["net:*"], "any host", True),
    ],
)
def test_the_network_of_a_cage_is_what_the_entries_say(
    daemon: Daemon, tmp_path: Path, capabilities: list[str], words: str, dangerous: bool
) -> None:
    guest = Guest(daemon, tmp_path, capabilities=capabilities)
    assert guest.run()["state"] == "running"
    (shown,) = daemon.cli("cage", "explain", guest.name, "--json").json["items"]
    (network,) = (one for one in shown["allows"] if words in one["words"])
    assert network["dangerous"] is dangerous, network


@whole("PH-CAP-16")
def test_a_grant_of_another_host_does_not_reach_the_machines_own_services(
    daemon: Daemon, tmp_path: Path, servers: Callable[[], Server]
) -> None:
    server = servers()
    capabilities = ["net:example.org:443", f"net:example.org:{server.port}"]
    guest = Guest(daemon, tmp_path, CONNECTS, capabilities=capabilities)
    assert guest.run()["state"] == "running"
    for host in ("localhost", "127.0.0.1"):
        got = visit(guest, host, server.port)
        assert "body" not in got, got
        assert "direct" not in got, got
    assert server.visits == 0


@whole("PH-CAP-05", "PH-CAGE-04")
def test_a_grant_of_every_port_opens_every_port_of_that_host(
    daemon: Daemon, tmp_path: Path, servers: Callable[[], Server]
) -> None:
    one, two = servers(), servers()
    guest = Guest(daemon, tmp_path, CONNECTS, capabilities=["net:localhost:*"])
    assert guest.run()["state"] == "running"
    for server in (one, two):
        got = visit(guest, "localhost", server.port)
        assert got.get("body") == "the machine" or "the machine" in got.get("direct", ""), got
    assert (one.visits > 0, two.visits > 0) == (True, True)
    elsewhere = visit(guest, "192.0.2.1", one.port)
    assert "body" not in elsewhere
    assert "direct" not in elsewhere


@whole("PH-AMB-68", "PH-CAGE-13")
def test_only_the_operator_adds_to_what_the_manifest_grants(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    behaviour: dict[str, Any] = {"on": {"a.b": [{"run": ["sh", "-c", WRITES]}]}}
    guest = Guest(daemon, tmp_path, behaviour, name="granted")
    guest.run()
    assert guest.call()["code"] != 0, "no grant, nothing to write to"
    project = Project(tmp_path / "p")
    project.describe(plugins={"it": {"package": "granted", "grants": ["write:fs:config:/memory"]}})
    refused = daemon.error("POST", "/projects", {"root": str(project.root), "trust": True})
    assert "grants" in json.dumps(refused), refused
    assert guest.call()["code"] != 0
    daemon.stop()
    local = (daemon.home / "local.toml").read_text(encoding="utf-8")
    assert "[plugins.granted]\n" in local
    grants = '[plugins.granted]\ngrants = ["write:fs:config:/memory"]\n'
    daemon.write("local.toml", local.replace("[plugins.granted]\n", grants, 1))
    daemon.start()
    guest.await_state("running")
    assert guest.call() == {"code": 0, "out": "written\n"}
    assert guest.rows("plugin.spawned")[-1]["operator_grants"] == ["write:fs:config:/memory"]
    assert guest.state()["operator_grants"] == ["write:fs:config:/memory"]
    assert "write:fs:config:/memory" not in guest.state()["capabilities"]
    (listed,) = daemon.cli("plugin", "list", "--verbose").out.splitlines()
    *_, capabilities, added = listed.split("\t")
    assert added == "write:fs:config:/memory"
    assert "config:" not in capabilities
    # It may use them, but not claim them as its own.
    claims = {"answer": {"capabilities_used": ["write:fs:config:/memory"]}}
    guest.write({**behaviour, **claims}, **{**guest.manifest, "version": "1.1.0"})
    shown = daemon.post("/plugins/preview", {"path": str(guest.root)})
    assert "config:/memory" in json.dumps(shown)
    daemon.post("/plugins", {"path": str(guest.root), "digest": shown["digest"]})
    guest.await_state("failed")
    assert guest.rows("plugin.capability_overreach")


WRITES = 'echo written > "$KAGED_CONFIG_ROOT/memory/note" && cat "$KAGED_CONFIG_ROOT/memory/note"'
