"""Where the channel to people's accounts exists, and everywhere it does not."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import kaged
from fakes.channel_lab import KEY, EchoMethods, channel_lab
from fakes.plugin_lab import PluginLab
from fakes.running_daemon import daemon_in_process
from kaged.base import SystemClock
from kaged.serve.sandbox_rpc import RpcLimits
from kaged.serve.sandbox_rpc.channels import RPC_PORT
from kaged.wire.tokens import TOKEN_VARIABLE
from requirements import requirement

SOURCES = Path(kaged.__file__).parent
DRIVER = Path(__file__).parents[2] / "fakes" / "channel_driver.py"
METHODS = {
    "capability.list",
    "capability.invoke",
    "capability.auth.begin",
    "capability.auth.list",
    "capability.auth.complete",
    "capability.auth.complete_callback",
    "capability.auth.poll",
    "capability.auth.revoke",
    "capability.auth.cancel",
}
LONG_FRAME = (
    "import os, socket; s = socket.create_connection((os.environ['ASH_RPC_HOST'], "
    "int(os.environ['ASH_RPC_PORT']))); s.sendall(b'\\xff\\xff\\xff\\xff' + b'x'); "
    "data = b''.join(iter(lambda: s.recv(65536), b'')); print(b'-32600' in data, 'closed')"
)


def identities() -> list[str]:
    return ["root", "user"] if os.geteuid() == 0 else ["user"]


def drive(who: str, command: str) -> Any:
    """Run a command with a channel in a process of its own, as `who`."""
    packages = sysconfig.get_paths()["purelib"]
    python, prefix = sys.executable, list[str]()
    if who == "user" and os.geteuid() == 0:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        python = f"/usr/bin/{version}"  # a plain user cannot start one below root's home
        if not Path(python).exists():
            pytest.skip(f"a plain user needs {python}")
        prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    paths = [str(SOURCES.parent), str(DRIVER.parents[1]), packages]
    done = subprocess.run(
        [*prefix, python, str(DRIVER), command],
        env={
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(paths),
        },
        cwd="/tmp",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@requirement("SC-AMB-33")
async def test_the_channel_is_for_granted_commands_and_speaks_its_methods_only(
    tmp_path: Path,
) -> None:
    """Both users, the default filter, no network grant; plugins and HTTP have no such thing."""
    for who in identities():
        said = drive(
            who, f'ash-sb capability invoke -c a.b -o who; python3 -c "{LONG_FRAME}"; {_OUTWARDS}'
        )
        lines = said["result"]["stdout"].splitlines()
        assert lines[0].startswith("Capability invocation succeeded"), said
        assert said["users"] == ["ann"]
        assert "True closed" in lines
        assert "no way out" in lines

    async with daemon_in_process(tmp_path / "home") as inside:
        accounts: Any = inside.daemon.services.subsystems.accounts
        assert set(accounts.rpc.methods) == METHODS
        document = (await inside.client.get("/api/v1/openapi.json")).json()
        assert not [path for path in document["paths"] if "capability" in path or "invoke" in path]
        assert not [path for path in document["paths"] if "/services/auth" in path]

    (tmp_path / "plugins").mkdir()
    plugins = PluginLab(tmp_path / "plugins", initialize_timeout_s=60.0)
    await plugins.open()
    try:
        plugin = await plugins.running(
            {"on": {"a.b": [{"connect": ["127.0.0.1", RPC_PORT]}]}}, capabilities=["net:[]"]
        )
        said = await plugins.call(plugin)
        assert "refused" in json.dumps(said).lower(), said
    finally:
        await plugins.close()


_OUTWARDS = (
    'python3 -c \\"import socket; s = socket.socket(); s.settimeout(3); '
    "print('no way out' if s.connect_ex(('192.0.2.1', 80)) else 'out')\\\""
).replace('\\"', '"')


def test_one_place_in_the_source_gives_tokens_and_services_to_cages() -> None:
    """Plugins, workers, servers and bridges are started elsewhere, without either."""
    giving: list[str] = []
    minting: list[str] = []
    for file in SOURCES.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        name = str(file.relative_to(SOURCES))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called == "CageRequest" and any(one.arg == "services" for one in node.keywords):
                giving.append(name)
            if called == "mint" and not name.startswith("services/"):
                minting.append(name)
    assert giving == ["toolbox/shell/launch.py"]
    assert minting == ["serve/sandbox_rpc/channels.py"]


@requirement("SC-SEC-06")
async def test_the_signing_secret_is_nowhere_in_the_cage(tmp_path: Path) -> None:
    """Environment, files and processes hold no byte of it, and what is forged there is refused."""
    forms = [KEY.export_text(), KEY.secret.hex(), KEY.secret.decode()]
    search = "; ".join(
        [
            "env",
            "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'",
            *(f"grep -rls {one} /opt /etc /run /tmp . | head -3" for one in forms),
        ]
    )
    forge = (
        "import base64, hmac, json, os, time; b = lambda d: base64.urlsafe_b64encode(d)"
        ".rstrip(b'=').decode(); h, p, s = os.environ['ASH_CONTEXT_TOKEN'].split('.'); "
        "c = json.loads(base64.urlsafe_b64decode(p + '=' * (-len(p) % 4))); c['sub'] = 'bob'; "
        "q = b(json.dumps(c).encode()); print('.'.join((h, q, s))); "
        "print('.'.join((h, q, b(hmac.digest(h.encode(), (h + '.' + q).encode(), 'sha256')))))"
    )
    methods = EchoMethods(SystemClock())
    async with channel_lab(tmp_path, methods) as lab:
        found = (await lab.run(search))["stdout"]
        (lab.root / "forge.py").write_text(forge.replace("; ", "\n", 1), encoding="utf-8")
        tries = await lab.run(
            "for t in $(python3 forge.py); do ASH_CONTEXT_TOKEN=$t ash-sb capability list; done"
        )
    assert all(one not in found.replace(search, "") for one in forms)
    assert tries["stdout"].count("Error: Invalid context token (signature)") == 2, tries
    assert methods.calls == []


async def test_a_flood_of_bad_tokens_is_cut_off(tmp_path: Path) -> None:
    """One connection takes a few; the person's own command goes on working."""
    flood = (
        "import json, os, socket; s = socket.create_connection((os.environ['ASH_RPC_HOST'], "
        "int(os.environ['ASH_RPC_PORT']))); m = json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': "
        "'capability.list', 'params': {'context_token': 'a.b.c'}}).encode()\n"
        "s.sendall((len(m).to_bytes(4, 'big') + m) * 50); s.shutdown(1)\n"
        "print(b''.join(iter(lambda: s.recv(65536), b'')).count(b'-32602'))"
    )
    methods = EchoMethods(SystemClock())
    async with channel_lab(tmp_path, methods, limits=RpcLimits(failed_tokens=3)) as lab:
        (lab.root / "flood.py").write_text(flood, encoding="utf-8")
        said = await lab.run("python3 flood.py; ash-sb capability list")
    assert said["stdout"].splitlines() == ["3", "No capabilities available."]


def test_the_name_of_the_token_variable_is_the_contracts() -> None:
    assert TOKEN_VARIABLE == "ASH_CONTEXT_TOKEN"
