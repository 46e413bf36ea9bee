"""`kage.exec`: one program, no shell, in a cage of its own on the real workdir."""

from __future__ import annotations

import asyncio
import os
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
async def test_a_program_gives_its_code_and_both_its_outputs_and_is_on_record(exe: LuaLab) -> None:
    said = "printf out; printf err >&2; exit 3"
    found = await _exec(exe, f"{{cmd='sh', args={{'-c', '{said}'}}}}")
    assert (found["code"], found["stdout"], found["stderr"]) == (3, "out", "err")
    (ran,) = exe.audited("lua.exec")
    assert (ran["cmd"], ran["args_count"], ran["exit_code"]) == ("sh", 2, 3)


@requirement("LC-EXEC-04")
@pytest.mark.parametrize("place", ["{work}/a", "~", "~/a", "~root"])
async def test_a_place_is_relative_even_where_another_way_to_write_it_stays_inside(
    exe: LuaLab, place: str
) -> None:
    (exe.work / "a").mkdir()
    place = place.format(work=exe.work)
    found = await exe.eval(
        ASK
        + f"local _, a = pcall(kage.exec, {{cmd='ls', cwd='{place}'}})\n"
        + f"local _, b = pcall(kage.fs.read, '{place}')\n"
        + f"local _, c = pcall(kage.fs.write, '{place}/x', 'y')\nreturn {{a, b, c}}"
    )
    assert ["must be relative to the workdir" in one for one in found] == [True] * 3
    assert sorted(one.name for one in exe.work.rglob("*") if one.name in {"x", "~", "~root"}) == []


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
    over = await _exec(exe, "{cmd='truncate', args={'-s', '5G', 'too-large'}}")
    assert (over["code"], over["timed_out"]) == (-1, False), "ended by a limit, not by the clock"
    assert "timeout_secs" in await _error(exe, "{cmd='true', timeout_secs=0}")


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
@pytest.mark.parametrize("forged", ["of another folder", "beside the work trees", "no way back"])
async def test_a_pointer_that_the_repository_does_not_return_gives_nothing(
    exe: LuaLab, forged: str
) -> None:
    main, other = exe.root / "main", exe.root / "other"
    main.mkdir()
    exe.git("init", "-q", "-b", "main", cwd=main)
    exe.git("commit", "-q", "--allow-empty", "-m", "first", cwd=main)
    exe.git("worktree", "add", "-q", str(other), cwd=main)
    kept = main / ".git" / "worktrees" / "other"
    if forged != "of another folder":
        (kept / "gitdir").write_text(f"{exe.work}/.git\n", encoding="utf-8")
    if forged == "beside the work trees":
        kept = kept.rename(main / ".git" / "other")
        (kept / "commondir").write_text("..\n", encoding="utf-8")
    elif forged == "no way back":
        (kept / "gitdir").unlink()
    (exe.work / ".git").write_text(f"gitdir: {kept}\n", encoding="utf-8")
    exe.build()
    assert (await _exec(exe, "{cmd='git', args={'log'}}"))["code"] == 128
    assert (await _exec(exe, f"{{cmd='ls', args={{'{main}/.git'}}}}"))["code"] != 0
