"""`kage.exec`: one program, no shell, in a cage of its own on the real workdir."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fakes.lua_lab import LuaLab, lua_lab
from kaged.base import Ids, ManualClock
from requirements import requirement

ASK = "kage.request_capabilities({'exec'})\n"


@pytest.fixture
def exe(lab: LuaLab) -> LuaLab:
    """Return a lab in which the script `probe` may run programs."""
    lab.grants["probe"] = ["exec"]
    return lab


async def _exec(lab: LuaLab, table: str) -> Any:
    return await lab.eval(ASK + f"return kage.exec({table})")


async def _error(lab: LuaLab, table: str) -> str:
    found = await lab.eval(ASK + f"local ok, e = pcall(kage.exec, {table}) return {{ok, e}}")
    assert found[0] is False, found
    return str(found[1])


@requirement("LC-EXEC-01")
async def test_git_stash_create_prints_an_object_of_the_real_repository(exe: LuaLab) -> None:
    exe.repository()
    (exe.work / "a.txt").write_text("changed\n", encoding="utf-8")
    found = await _exec(exe, "{cmd='git', args={'stash', 'create'}}")
    assert found["code"] == 0, found
    assert exe.git("cat-file", "-t", found["stdout"].strip()) == "commit"


@requirement("LC-EXEC-02", "LC-SAFE-03")
async def test_arguments_arrive_as_they_are(exe: LuaLab) -> None:
    words = ["; touch pwned", "$(id)", "*", "a b", "--", "-n", "\\n", "'\""]
    listed = ", ".join("[==[" + one + "]==]" for one in words)
    program = "import sys; sys.stdout.write('\\\\0'.join(sys.argv[1:]))"
    found = await _exec(
        exe,
        f"{{cmd='python3', args={{'-c', [==[{program}]==], {listed}}}}}".replace("\\\\0", "\\0"),
    )
    assert found["code"] == 0, found
    assert found["stdout"].split("\0") == words
    assert not list(exe.work.iterdir())
    (argv,) = [
        data["argv"]
        for name, data in exe.cage_events
        if data.get("what") == "lua-exec:probe" and name == "cage.started"
    ]
    assert isinstance(argv, list)
    assert argv[0] == "/usr/bin/python3"
    assert argv[3:] == words


@requirement("LC-EXEC-03")
async def test_programs_start_in_the_workdir_or_below(exe: LuaLab) -> None:
    (exe.work / "sub").mkdir()
    found = await exe.eval(
        ASK + "return {kage.exec{cmd='pwd'}.stdout, kage.exec{cmd='pwd', cwd='sub'}.stdout}"
    )
    assert found == [f"{exe.work}\n", f"{exe.work}/sub\n"]


@requirement("LC-EXEC-04")
@pytest.mark.parametrize("place", ["..", "a/../..", "/etc", "leak"])
async def test_no_place_outside_is_taken_by_exec_nor_by_fs(exe: LuaLab, place: str) -> None:
    (exe.work / "a").mkdir()
    (exe.work / "leak").symlink_to("/etc")
    found = await exe.eval(
        ASK
        + f"local _, a = pcall(kage.exec, {{cmd='ls', cwd='{place}'}})\n"
        + f"local _, b = pcall(kage.fs.read, '{place}')\n"
        + f"local _, c = pcall(kage.fs.write, '{place}/x', 'y')\nreturn {{a, b, c}}"
    )
    exec_says, fs_says, write_says = found
    assert exec_says.startswith(f"kage.exec: cwd {place}: ")
    assert fs_says.startswith(f"kage.fs.read: path {place}: ")
    assert exec_says.removeprefix("kage.exec: cwd ") == fs_says.removeprefix("kage.fs.read: path ")
    assert "must" in write_says or "leads out" in write_says


@requirement("LC-EXEC-05", "LC-EXEC-06", "LC-EXEC-07")
async def test_the_call_waits_and_keeps_both_streams_apart(exe: LuaLab) -> None:
    script = "sleep 0.2; echo late; echo wrong >&2; exit 3"
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async with asyncio.TaskGroup() as group:
        clock = group.create_task(tick())
        found = await _exec(exe, f"{{cmd='sh', args={{'-c', '{script}'}}}}")
        clock.cancel()
    assert found["code"] == 3
    assert (found["stdout"], found["stderr"]) == ("late\n", "wrong\n")
    assert ticks > 0  # the host's own loop went on meanwhile
    quiet = await _exec(exe, "{cmd='true'}")
    assert (quiet["code"], quiet["stdout"], quiet["stderr"]) == (0, "", "")
    both = (
        "import sys\nfor _ in range(300):\n sys.stdout.write('o'*1000)\n sys.stderr.write('e'*1000)"
    )
    full = await _exec(exe, f"{{cmd='python3', args={{'-c', [==[{both}]==]}}}}")
    assert (len(full["stdout"]), len(full["stderr"])) == (300_000, 300_000)


@requirement("LC-AMB-06")
async def test_time_and_output_are_bounded(exe: LuaLab) -> None:
    late = await _exec(
        exe, "{cmd='sh', args={'-c', 'echo begun; sleep 600 & sleep 600'}, timeout_secs=1}"
    )
    assert (late["code"], late["timed_out"], late["stdout"]) == (-1, True, "begun\n")
    big = await _exec(exe, "{cmd='head', args={'-c', '2097152', '/dev/zero'}}")
    assert (big["code"], big["truncated"], len(big["stdout"])) == (0, True, 1024 * 1024)
    left = await _exec(exe, "{cmd='sh', args={'-c', 'sleep 600 & echo done'}}")
    assert (left["code"], left["stdout"], left["timed_out"]) == (0, "done\n", False)
    killed = await _exec(exe, "{cmd='sh', args={'-c', 'kill -9 $$'}}")
    assert killed["code"] in (-1, 137)
    assert "timeout_secs" in await _error(exe, "{cmd='true', timeout_secs=0}")


async def _reach(exe: LuaLab, program: str) -> str:
    found = await _exec(exe, f"{{cmd='python3', args={{'-c', [==[{program}]==]}}}}")
    return str(found["stdout"] + found["stderr"])


@requirement("LC-AMB-07")
async def test_the_child_lives_in_a_cage_on_the_real_workdir(exe: LuaLab) -> None:
    home = exe.root / "nobody"
    home.mkdir()
    (home / "token").write_text("operator-secret", encoding="utf-8")
    neighbour = exe.root / "neighbour"
    neighbour.mkdir()
    (neighbour / "plan").write_text("neighbour-secret", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = await _exec(
            exe,
            "{cmd='sh', args={'-c', [==[pwd; echo made > made.txt; "
            f"cat {home}/token; cat {neighbour}/plan]==]}}}}",
        )
        said = await _reach(
            exe,
            f"import socket\nfor place in (('127.0.0.1', {port}), ('192.0.2.1', 80)):\n"
            "  try:\n    socket.create_connection(place, 2)\n    print('connected')\n"
            "  except OSError as error:\n    print('refused')",
        )
    assert found["stdout"] == f"{exe.work}\n"
    assert "secret" not in found["stderr"]
    assert said.split() == ["refused", "refused"]
    made = exe.work / "made.txt"
    assert made.read_text(encoding="utf-8") == "made\n"
    assert made.stat().st_uid == exe.work.stat().st_uid


@requirement("LC-AMB-08")
async def test_the_child_sees_a_made_up_environment(exe: LuaLab) -> None:
    exe.repository()
    exe.environ |= {
        "LANG": "C.UTF-8", "LC_ALL": "C", "TERM": "dumb", "OPENAI_API_KEY": "sk-x",
        "GIT_DIR": "/elsewhere", "GIT_INDEX_FILE": "/elsewhere/i", "GIT_SSH_COMMAND": "evil",
        "ASH_CONTEXT_TOKEN": "t0ken",
    }  # fmt: skip
    exe.build()
    found = await _exec(exe, "{cmd='env'}")
    pairs = dict(one.split("=", 1) for one in found["stdout"].splitlines())
    made = {"PATH", "HOME", "TMPDIR", "USER", "LANG", "LC_ALL", "TERM"}
    own = {"PWD", "LOGNAME", "XDG_CACHE_HOME"}  # the cage's own, as every cage has them
    assert set(pairs) - own == made | {"GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"}
    home = await _exec(
        exe, "{cmd='sh', args={'-c', 'ls -A $HOME; touch $HOME/x && cat && echo empty'}}"
    )
    assert home["stdout"] == "empty\n"
    (exe.work / "a.txt").write_text("changed\n", encoding="utf-8")
    assert (await _exec(exe, "{cmd='git', args={'stash', 'create'}}"))["code"] == 0


@requirement("LC-AMB-09")
async def test_what_did_not_start_is_no_exit_status(exe: LuaLab) -> None:
    outside = exe.root / "tool"
    outside.write_text("#!/bin/sh\necho ran\n", encoding="utf-8")
    outside.chmod(0o755)
    (exe.work / "plain").write_text("echo ran\n", encoding="utf-8")
    (exe.work / "plain").chmod(0o755)
    for cmd in ("no-such-program", str(outside), "./missing", "./plain"):
        said = await _error(exe, f"{{cmd='{cmd}'}}")
        assert said.startswith("kage.exec: "), said
        assert cmd in said
    for code in (1, 127):
        found = await _exec(exe, f"{{cmd='sh', args={{'-c', 'exit {code}'}}}}")
        assert found["code"] == code
    (exe.work / "own").write_text("#!/bin/sh\necho mine\n", encoding="utf-8")
    (exe.work / "own").chmod(0o755)
    assert (await _exec(exe, "{cmd='./own'}"))["stdout"] == "mine\n"


@requirement("LC-AMB-10")
@pytest.mark.parametrize(
    ("table", "field"),
    [
        ("{cmd=''}", "cmd"),
        ("{cmd='a\\0b'}", "cmd"),
        ("{}", "cmd"),
        ("{cmd='true', args={1}}", "args"),
        ("{cmd='true', args={'a\\0b'}}", "args"),
        ("{cmd='true', args='x'}", "args"),
        ("{cmd='true', cwd=3}", "cwd"),
        ("{cmd='true', timeout_secs='x'}", "timeout_secs"),
    ],
)
async def test_wrong_types_are_refused_by_name(exe: LuaLab, table: str, field: str) -> None:
    said = await _error(exe, table)
    assert said.startswith("kage.exec: ")
    assert field in said
    found = await _exec(exe, "{cmd='true', surprise=function() end}")
    assert found["code"] == 0


GIT_WORK = """
local function git(...) return kage.exec{cmd='git', args={...}} end
local stash = git('stash', 'create')
local tree = git('write-tree')
local commit = git('commit-tree', (tree.stdout:gsub('%s', '')), '-m', 'made inside')
local back = git('restore', '--source', 'HEAD', '--', 'a.txt')
local index = git('rev-parse', '--git-path', 'other-index').stdout:gsub('%s', '')
local add = kage.exec{cmd='env', args={'GIT_INDEX_FILE=' .. index, 'git', 'add', '-A'}}
return {stash = stash, tree = tree, commit = commit, back = back, add = add}
"""


def _check_git(exe: LuaLab, found: Any, where: Path) -> str:
    for name, one in found.items():
        assert one["code"] == 0, (name, one)
    commit = found["commit"]["stdout"].strip()
    assert exe.git("cat-file", "-t", commit, cwd=where) == "commit"
    assert (where / "a.txt").read_text(encoding="utf-8") == "one\n"
    return commit


@requirement("LC-AMB-21")
async def test_git_works_on_the_real_repository_without_the_operators_home(exe: LuaLab) -> None:
    home = exe.root / "nobody"
    home.mkdir()
    token = "ghp_secret_of_the_operator"
    (home / ".gitconfig").write_text(
        f"[user]\n\tname = Ada\n\temail = ada@example.org\n[core]\n\tautocrlf = input\n"
        f'[url "https://x:{token}@host/"]\n\tinsteadOf = https://host/\n'
        "[alias]\n\tevil = !touch /tmp/x\n[include]\n\tpath = other\n",
        encoding="utf-8",
    )
    exe.repository()
    (exe.work / "a.txt").write_text("changed\n", encoding="utf-8")
    commit = _check_git(exe, await exe.eval(ASK + GIT_WORK), exe.work)
    assert exe.git("show", "-s", "--format=%an %ae", commit) == "Ada ada@example.org"
    shown = await _exec(exe, "{cmd='sh', args={'-c', 'cat $GIT_CONFIG_GLOBAL; git config -l'}}")
    assert token not in shown["stdout"]
    assert "evil" not in shown["stdout"]
    assert "core.autocrlf=input" in shown["stdout"]
    exe.git("config", "user.email", "repo@example.org")
    made = await _exec(exe, "{cmd='git', args={'commit-tree', 'HEAD^{tree}', '-m', 'x'}}")
    who = exe.git("show", "-s", "--format=%ae", made["stdout"].strip())
    assert who == "repo@example.org"


@requirement("LC-AMB-21")
@pytest.mark.needs_root
async def test_git_works_in_a_workdir_of_another_user(clock: ManualClock, ids: Ids) -> None:
    # Not below pytest's own folder, which nobody else may enter.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="kgd-") as place:
        async with lua_lab(Path(place), clock, ids) as exe:
            exe.grants["probe"] = ["exec"]
            exe.repository()
            (exe.work / "a.txt").write_text("changed\n", encoding="utf-8")
            for path in [exe.work, *exe.work.rglob("*")]:
                os.chown(path, 4321, 4321)
            _check_git(exe, await exe.eval(ASK + GIT_WORK), exe.work)
            assert (exe.work / "a.txt").stat().st_uid == 4321


@requirement("LC-AMB-22")
async def test_hooks_and_configuration_stay_as_they_are(exe: LuaLab) -> None:
    exe.repository()
    config = (exe.work / ".git" / "config").read_text(encoding="utf-8")
    tries = await exe.eval(
        ASK
        + """
        local function sh(text) return kage.exec{cmd='sh', args={'-c', text}}.code end
        return {
          sh('echo x > .git/hooks/post-checkout'), sh('git config core.pager evil'),
          sh('mv .git gone'), sh('rm -rf .git'), sh('mv .git/hooks .git/hooks2'),
          sh('cp /dev/null .git/config'), sh('mv .git/config .git/c2'),
          pcall(kage.fs.write, '.git/hooks/post-checkout', 'x') and 0 or 1,
          pcall(kage.fs.write, '.git/config', 'x') and 0 or 1,
          pcall(kage.fs.write, '.git', 'x') and 0 or 1,
        }"""
    )
    assert 0 not in tries, tries
    assert (exe.work / ".git" / "config").read_text(encoding="utf-8") == config
    assert not (exe.work / ".git" / "hooks" / "post-checkout").exists()
    exe.git("init", "-q")  # what `rm -rf` could take away is no command
    (exe.work / ".git" / "commondir").unlink(missing_ok=True)
    await _exec(exe, "{cmd='sh', args={'-c', 'mkdir evil; echo ../evil > .git/commondir'}}")
    assert not (exe.work / ".git" / "commondir").exists()


@requirement("LC-AMB-22")
async def test_git_works_in_a_linked_work_tree_and_a_rewritten_pointer_gives_nothing(
    exe: LuaLab,
) -> None:
    main = exe.root / "main"
    shutil.rmtree(exe.work)
    main.mkdir()
    exe.git("init", "-q", "-b", "main", cwd=main)
    (main / "a.txt").write_text("one\n", encoding="utf-8")
    exe.git("add", "-A", cwd=main)
    exe.git("commit", "-q", "-m", "first", cwd=main)
    exe.git("worktree", "add", "-q", str(exe.work), cwd=main)
    other = exe.root / "other"
    other.mkdir()
    exe.git("init", "-q", cwd=other)
    exe.build()
    (exe.work / "a.txt").write_text("changed\n", encoding="utf-8")
    _check_git(exe, await exe.eval(ASK + GIT_WORK), exe.work)
    tries = await exe.eval(
        ASK
        + f"""
        local function sh(text) return kage.exec{{cmd='sh', args={{'-c', text}}}}.code end
        return {{sh('echo gitdir: {other}/.git > .git'), sh('mv .git x'),
          sh('echo x > {main}/.git/hooks/pre-commit'), sh('git config user.name evil')}}"""
    )
    assert 0 not in tries
    # Even if it had been rewritten: what was found at load counts.
    (exe.work / ".git").write_text(f"gitdir: {other}/.git\n", encoding="utf-8")
    seen = await _exec(exe, f"{{cmd='ls', args={{'{other}/.git'}}}}")
    assert seen["code"] != 0


@requirement("LC-AMB-22")
async def test_a_repository_above_the_workdir_is_not_found(exe: LuaLab) -> None:
    exe.git("init", "-q", cwd=exe.root)
    found = await _exec(exe, "{cmd='git', args={'status'}}")
    assert found["code"] == 128
