"""The cage around a plugin, seen from inside: what its capabilities give, and nothing else.

An explorer is a plugin that runs what it is told in its own cage and says what came of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whole.harness.daemon as harness
from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.guests import Guest
from whole.harness.project import Project

EXPLORES = """
from kit import *
import subprocess
greet()
def on(message):
    params = message["params"]
    try:
        if message["method"] == "a.python":
            scope = {}
            exec(params["code"], scope)
            answer(message, scope.get("found"))
        else:
            done = subprocess.run(params["argv"], capture_output=True, text=True, timeout=20,
                                  cwd=params.get("cwd"))
            answer(message, {"code": done.returncode, "out": done.stdout, "err": done.stderr})
    except Exception as error:
        answer(message, {"code": None, "out": "", "err": f"{type(error).__name__}: {error}"})
serve(on)
"""


class Explorer(Guest):
    """A plugin that looks around in its cage."""

    def __init__(self, daemon: Daemon, below: Path, **manifest: Any) -> None:
        super().__init__(daemon, below, EXPLORES, methods=["a.python", "a.run"], **manifest)

    def sh(self, script: str, cwd: str | None = None) -> dict[str, Any]:
        """Run a script of the shell inside."""
        got: dict[str, Any] = self.call("a.run", argv=["sh", "-c", script], cwd=cwd)
        return got

    def run_inside(self, *argv: str, cwd: str | None = None) -> dict[str, Any]:
        """Run a program inside."""
        got: dict[str, Any] = self.call("a.run", argv=list(argv), cwd=cwd)
        return got

    def python(self, code: str) -> Any:
        """Run Python inside; what it calls `found` comes back."""
        return self.call("a.python", code=code)


def folder(below: Path, name: str) -> Path:
    """Make a folder that everybody may write, so that only a cage can stand in the way."""
    made = below / name
    (made / "deep").mkdir(parents=True)
    (made / "deep" / "file").write_text("content\n", encoding="utf-8")
    for path in (made, made / "deep"):
        path.chmod(0o777)
    (made / "deep" / "file").chmod(0o666)
    return made


@pytest.fixture(scope="module")
def bare(daemon: Daemon, module_path: Path) -> Explorer:
    """Return an explorer without capabilities, but for its diary."""
    made = Explorer(daemon, module_path, name="bare")
    assert made.run()["state"] == "running"
    return made


def refused_to_start(guest: Guest, path: str) -> dict[str, Any]:
    """See that a plugin is failed for its cage, by name of the path, without any process."""
    state = guest.run()
    assert state["state"] == "failed", state
    assert state["pid"] is None
    (row,) = guest.rows("plugin.failed")
    assert path in row["reason"], row
    assert guest.events() == ["plugin.installed", "plugin.enabled", "plugin.failed"]
    assert guest.heard() == []
    return row


@whole("PH-CAGE-01", "PH-CAGE-17", "PH-CAGE-12")
def test_every_plugin_runs_below_bubblewrap_in_namespaces_of_its_own(
    daemon: Daemon, bare: Explorer
) -> None:
    state = bare.state()
    wrapper = Path(f"/proc/{state['pid']}/cmdline").read_bytes().split(b"\0")
    assert Path(os.fsdecode(wrapper[0])).name == "bwrap", wrapper[:3]
    inside = bare.python(
        "import os\nfound = {n: os.readlink(f'/proc/self/ns/{n}') "
        "for n in ('net', 'pid', 'mnt', 'ipc', 'user', 'uts')}"
    )
    outside = {name: str(Path(f"/proc/{daemon.pid}/ns/{name}").readlink()) for name in inside}
    assert [name for name in inside if inside[name] == outside[name]] == []
    links = bare.python("import socket\nfound = [n for _, n in socket.if_nameindex()]")
    assert links == ["lo"]
    (spawned,) = bare.rows("plugin.spawned")
    assert spawned["cage_id"]
    assert spawned["cage_id"] == state["cage_id"]
    assert spawned["pid"] == state["pid"]
    daemon.post("/plugins/bare/restart")
    _, second = bare.rows("plugin.spawned")
    assert second["cage_id"]
    assert second["cage_id"] == bare.state()["cage_id"]


@whole("PH-CAGE-02")
def test_a_plugins_own_files_are_there_and_cannot_be_changed(bare: Explorer) -> None:
    assert bare.sh("cat kaged-plugin.yaml")["out"].startswith("name: bare")
    where = bare.sh("pwd")["out"].strip()
    for script in (f"touch {where}/new", f"echo x >> {where}/main.py", f"rm {where}/main.py"):
        tried = bare.sh(script)
        assert tried["code"] != 0
        assert "Read-only file system" in tried["err"], tried


@whole("PH-CAGE-07", "PH-CAGE-10")
def test_no_word_in_a_manifest_takes_the_cage_or_its_filter_away(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Explorer(daemon, tmp_path, cage="disabled", seccomp="relaxed", sandbox=False)
    assert guest.run()["state"] == "running"
    status = guest.sh("cat /proc/self/status")["out"]
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
    traced = guest.python(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "found = [libc.ptrace(0, 0, 0, 0), ctypes.get_errno()]"
    )
    assert traced == [-1, 1], "EPERM: the default filter has no ptrace"
    assert guest.sh("cat /etc/passwd")["code"] != 0
    shown = daemon.cli("cage", "explain", guest.name, "--json").json
    assert "relaxed" not in json.dumps(shown)


@whole("PH-CAGE-03", "PH-CAP-01", "PH-CAP-02", "PH-CAGE-14")
def test_paths_are_readable_or_writable_as_granted_and_their_neighbours_are_not_there(
    daemon: Daemon, tmp_path: Path
) -> None:
    read, write = folder(tmp_path, "read"), folder(tmp_path, "write")
    beside = folder(tmp_path, "beside")
    guest = Explorer(daemon, tmp_path, capabilities=[f"read:fs:{read}", f"write:fs:{write}"])
    guest.run()
    assert guest.sh(f"cat {read}/deep/file")["out"] == "content\n"
    for script in (
        f"echo x > {read}/deep/file",
        f"touch {read}/new",
        f"rm {read}/deep/file",
        f"mkdir {read}/deep/more",
    ):
        tried = guest.sh(script)
        assert tried["code"] != 0
        assert "Read-only file system" in tried["err"]
    script = f"mkdir -p {write}/a/b && echo new > {write}/a/b/c && echo more >> {write}/deep/file"
    assert guest.sh(script) == {"code": 0, "out": "", "err": ""}
    assert (write / "a/b/c").read_text(encoding="utf-8") == "new\n"
    assert (write / "deep/file").read_text(encoding="utf-8") == "content\nmore\n"
    for path in ("/etc/passwd", "/etc/shadow", f"{beside}/deep/file", str(Path.home()), "/root"):
        tried = guest.python(
            f"import os\ntry:\n    found = os.listdir({path!r}) if os.path.isdir({path!r})"
            f" else open({path!r}).read()\nexcept OSError as e:\n    found = type(e).__name__"
        )
        assert tried == "FileNotFoundError", (path, tried)
    assert (read / "deep/file").read_text(encoding="utf-8") == "content\n"
    assert not (read / "new").exists()


@whole("PH-CAGE-18", "PH-AMB-05", "PH-AMB-62")
def test_read_and_write_of_one_path_is_writable_and_a_narrower_read_stays_read_only(
    daemon: Daemon, tmp_path: Path
) -> None:
    both = ["read:fs:config:/memory", "write:fs:config:/memory"]
    guest = Explorer(daemon, tmp_path, capabilities=[*both, "read:fs:config:/memory/fixed"])
    assert guest.run()["state"] == "running"
    assert guest.sh('echo x > "$KAGED_CONFIG_ROOT/memory/note"')["code"] == 0
    tried = guest.sh('echo x > "$KAGED_CONFIG_ROOT/memory/fixed/no"')
    assert "Read-only file system" in tried["err"]
    root = Path(guest.sh('echo "$KAGED_CONFIG_ROOT"')["out"].strip())
    assert (root / "memory/note").read_text(encoding="utf-8") == "x\n"
    daemon.post(f"/plugins/{guest.name}/restart")
    assert guest.sh('cat "$KAGED_CONFIG_ROOT/memory/note"')["out"] == "x\n"
    other = Explorer(daemon, tmp_path, capabilities=["write:fs:config:/memory"])
    other.run()
    assert other.sh('ls "$KAGED_CONFIG_ROOT/memory"')["out"] == ""
    assert other.sh(f"cat {root}/memory/note")["code"] != 0
    without = Explorer(daemon, tmp_path)
    without.run()
    names = without.sh("env")["out"]
    assert "KAGED_CONFIG_ROOT" not in names
    assert "KAGED_PROJECT_ROOT" not in names


@whole("PH-AMB-05", "PH-AMB-62", "PH-CAGE-13")
def test_project_paths_are_those_of_the_projects_that_use_the_plugin(
    daemon: Daemon, tmp_path: Path
) -> None:
    guest = Explorer(daemon, tmp_path, capabilities=["read:fs:project:/docs"])
    guest.run()
    mine, strange = Project(tmp_path / "mine"), Project(tmp_path / "strange")
    for project in (mine, strange):
        project.write("docs/page.md", project.root.name)
        project.write("secret.txt", "secret")
    daemon.load(strange)
    assert guest.sh(f"cat {mine.root}/docs/page.md")["code"] != 0
    cage = {"fs": [{"mode": "rw", "path": "."}], "net": {"allow": ["*"]}}
    mine.describe(plugins={"it": {"package": guest.name}}, cage=cage)
    daemon.load(mine)
    guest.await_heard("projects.activated")
    guest.await_state("running")
    assert guest.sh('cat "$KAGED_PROJECT_ROOT/docs/page.md"')["out"] == "mine"
    assert guest.sh('echo "$KAGED_PROJECT_ID"')["out"].strip() == mine.id
    # The project's own cage is wide; it widens nothing for the plugin.
    assert guest.sh(f"cat {mine.root}/secret.txt")["code"] != 0
    assert guest.sh(f"touch {mine.root}/docs/new")["code"] != 0
    assert guest.sh(f"cat {strange.root}/docs/page.md")["code"] != 0
    assert guest.python("import socket\nfound = [n for _, n in socket.if_nameindex()]") == ["lo"]
    daemon.ask("DELETE", f"/projects/{mine.id}")
    exactly(3, lambda: guest.rows("plugin.spawned"))
    guest.await_state("running")
    assert guest.sh(f"cat {mine.root}/docs/page.md")["code"] != 0


@whole("PH-CAGE-06")
def test_what_a_plugin_leaves_in_its_scratch_is_gone_with_the_process(
    daemon: Daemon, bare: Explorer, tmp_path: Path
) -> None:
    name = f"left-{tmp_path.name}"  # nobody else's: the host's folder is everybody's
    places = (f"/tmp/{name}", "$TMPDIR/left2", "/run/left")
    for place in places:
        assert bare.sh(f"echo here > {place}")["code"] == 0, place
        assert bare.sh(f"cat {place}")["out"] == "here\n"
    daemon.post("/plugins/bare/restart")
    for place in places:
        assert bare.sh(f"cat {place}")["code"] != 0, place
    assert not Path(f"/tmp/{name}").exists()


@whole("PH-AMB-52", "PH-CAP-03", "PH-CAGE-05", "PH-AMB-65")
def test_only_the_named_program_can_be_started_and_its_folder_is_read_only(
    daemon: Daemon, bare: Explorer, tmp_path: Path
) -> None:
    assert bare.run_inside("git", "--version")["err"].startswith("FileNotFoundError")
    assert bare.run_inside("env", "true")["code"] == 0
    work, sibling = folder(tmp_path, "work"), folder(tmp_path, "sibling")
    guest = Explorer(daemon, tmp_path, capabilities=[f"exec:git:{work}"])
    shown = daemon.post("/plugins/preview", {"path": str(guest.root)})
    assert f"exec:git:{work}" in json.dumps(shown)
    assert guest.run()["state"] == "running"
    assert guest.run_inside("git", "--version", cwd=str(work))["out"].startswith("git version")
    for program in ("curl", "ssh", "make", "perl", "bwrap", "sudo"):
        tried = guest.run_inside(program, "--version")
        assert tried["err"].startswith("FileNotFoundError"), (program, tried)
    assert guest.sh("cat deep/file", cwd=str(work))["out"] == "content\n"
    assert "Read-only" in guest.sh("touch new", cwd=str(work))["err"]
    assert guest.sh("true", cwd=str(sibling))["err"].startswith("FileNotFoundError")


@whole("PH-CAGE-19", "PH-CAGE-16", "PH-SUP-03", "PH-AMB-63")
def test_the_hosts_own_files_and_the_kernels_are_granted_to_nobody(
    daemon: Daemon, bare: Explorer, tmp_path: Path
) -> None:
    home = daemon.home
    places = [
        "/",
        "/proc",
        "/sys",
        "/dev",
        "/proc/sys",
        str(home),
        str(home.parent),
        str(home / "config.toml"),
        str(home / "local.toml"),
        str(bare.stored),
        str(tmp_path / "missing"),
    ]
    for place in places:
        for kind in ("read", "write"):
            guest = Guest(daemon, tmp_path, capabilities=[f"{kind}:fs:{place}"])
            refused_to_start(guest, place)


@whole("PH-CAGE-16")
@pytest.mark.parametrize("tree", ["/usr", "/etc", "/boot", "/usr/bin", "/boot/.", "/bin", "/lib"])
def test_the_machines_own_trees_are_never_writable(
    daemon: Daemon, tmp_path: Path, tree: str
) -> None:
    guest = Guest(daemon, tmp_path, capabilities=[f"write:fs:{tree}"])
    row = refused_to_start(guest, tree.removesuffix("/."))
    assert row["step"] in {"cage", "spawn"}


@whole("PH-CAP-12")
def test_a_path_that_leads_elsewhere_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    outside = folder(tmp_path, "outside")
    inside = folder(tmp_path, "inside")
    (tmp_path / "other").symlink_to(outside)
    for link in ("link", "other", "other/deep"):
        refused_to_start(Guest(daemon, tmp_path, capabilities=[f"read:fs:{tmp_path}/{link}"]), link)
    # A link inside what is granted shows nothing of what lies outside.
    (inside / "out").symlink_to(outside)
    guest = Explorer(daemon, tmp_path, capabilities=[f"read:fs:{inside}"])
    guest.run()
    assert guest.sh(f"cat {inside}/out/deep/file")["code"] != 0
    assert guest.sh(f"cat {inside}/deep/file")["out"] == "content\n"


@whole("PH-SUP-03")
@pytest.mark.parametrize("command", ["../run.sh", "./../../run.sh", "sub/../../run.sh", "link.sh"])
def test_a_command_that_leaves_the_plugins_folder_is_not_started(
    daemon: Daemon, tmp_path: Path, command: str
) -> None:
    program = tmp_path / "run.sh"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n", encoding="utf-8")
    program.chmod(0o755)
    guest = Guest(daemon, tmp_path, command=[command])
    (guest.root / "sub").mkdir()
    if command == "link.sh":
        (guest.root / "link.sh").symlink_to("../run.sh")
    for store in (daemon.home / "plugins", daemon.home):
        if store.is_dir():
            outside = store / "run.sh"
            outside.write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
            outside.chmod(0o755)
    preview = daemon.client.post("/api/v1/plugins/preview", json={"path": str(guest.root)})
    if command == "link.sh":
        assert preview.json()["error"]["code"] == "plugin_tree_refused"
        assert preview.json()["error"]["data"]["path"] == "link.sh"
    else:
        assert guest.run()["state"] == "failed"
        (row,) = guest.rows("plugin.failed")
        assert command in row["reason"]
        assert guest.rows("plugin.spawned") == []
    for store in (daemon.home / "plugins", daemon.home):
        (store / "run.sh").unlink(missing_ok=True)
    assert not (tmp_path / "ran").exists()


@whole("PH-CAGE-08")
def test_a_plugin_has_512_megabytes_and_a_hundred_processes(bare: Explorer) -> None:
    (shown,) = bare.daemon.cli("cage", "explain", "bare", "--json").json["items"]
    (limits,) = (one["words"] for one in shown["allows"] if "MiB of memory" in one["words"])
    assert "512 MiB of memory, 100 processes," in limits
    assert "a processor share of 256" in limits
    assert "second" not in limits, "no limit in time"
    got = bare.python(
        "import resource\ntry:\n    big = bytearray(700 * 1024 * 1024)\n    found = 'got it'\n"
        "except MemoryError:\n    found = 'refused'"
    )
    assert got == "refused"
    forked = bare.python(
        "import os, signal\nmade = []\n"
        "try:\n"
        "    while len(made) < 300:\n"
        "        child = os.fork()\n"
        "        if not child:\n"
        "            signal.pause()\n"
        "        made.append(child)\n"
        "except OSError:\n    pass\n"
        "for child in made:\n    os.kill(child, 9)\n    os.waitpid(child, 0)\n"
        "found = len(made)"
    )
    assert forked < 100, forked
    assert bare.state()["state"] == "running"


@whole("PH-CAGE-11", "PH-CAGE-09", "PH-CAGE-10")
def test_the_flag_that_frees_agents_frees_no_plugin_and_the_operator_sets_limits(
    own: Callable[..., Daemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = own(
        config="[sandbox.limits]\nmemory_mb = 200\n[sandbox.plugins.small]\nmemory_mb = 120\n"
    )
    wrapper = tmp_path / "kaged"
    wrapper.write_text(f'#!/bin/sh\nexec {harness.KAGED} "$@" --no-sandbox\n', encoding="utf-8")
    wrapper.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(harness, "KAGED", str(wrapper))
        daemon.start()
    guest = Explorer(daemon, tmp_path)
    small = Explorer(daemon, tmp_path, name="small")
    allocate = (
        "try:\n    big = bytearray({} * 1024 * 1024)\n    found = 'got it'\n"
        "except MemoryError:\n    found = 'refused'"
    )
    for one in (guest, small):
        assert one.run()["state"] == "running"
        argv = Path(f"/proc/{one.state()['pid']}/cmdline").read_bytes().split(b"\0")
        assert argv[0].endswith(b"bwrap")
        assert one.sh("cat /etc/passwd")["code"] != 0
    assert guest.python(allocate.format(140)) == "got it"
    assert guest.python(allocate.format(300)) == "refused"
    assert small.python(allocate.format(140)) == "refused"


@whole("PH-CAGE-16", "PH-AMB-63")
def test_without_bubblewrap_there_is_no_process_at_all(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own(config='[sandbox]\nbwrap = "/no/such/bwrap"\n')
    daemon.start()
    guest = Guest(daemon, tmp_path)
    assert guest.run()["state"] == "failed"
    assert guest.events() == ["plugin.installed", "plugin.enabled", "plugin.failed"]
    assert guest.heard() == []
    assert wait_for(lambda: guest.rows("plugin.failed"))[0]["reason"]
    assert guest.fail()["code"] == "plugin_unavailable"
