"""`kage.exec` in a running daemon: a program, no shell, a cage of its own on the real workdir."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon
from whole.harness.model import ModelServer
from whole.harness.project import Project
from whole.harness.scripts import Scripts, git, lua_list, repository

ASK = "kage.request_capabilities({'exec'})\n"
TOKEN = "ghp_secret_of_the_operator"
GITCONFIG = f"""\
[user]
	name = Ada
	email = ada@example.org
[core]
	autocrlf = input
[credential]
	helper = store --file={TOKEN}
[url "https://x:{TOKEN}@host/"]
	insteadOf = https://host/
[alias]
	evil = !touch /tmp/x
[include]
	path = other
"""
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "LC_TIME": "C",
    "TERM": "dumb",
    "OPENAI_API_KEY": "sk-x",
    "GIT_DIR": "/elsewhere",
    "GIT_INDEX_FILE": "/elsewhere/i",
    "GIT_SSH_COMMAND": "evil",
    "ASH_CONTEXT_TOKEN": "t0ken",
}


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon of an operator with secrets in the environment and in git's settings."""
    made = Daemon(module_path / "h", local=model.local_toml(), env=ENVIRONMENT)
    made.write(".gitconfig", GITCONFIG)
    made.start()
    yield made
    made.close()


@pytest.fixture
def exe(scripts: Scripts) -> Scripts:
    """Return scripts of which `probe` may run programs."""
    scripts.grant(probe=["exec"])
    return scripts


def run(exe: Scripts, table: str) -> Any:
    """Run a program; returns its outcome."""
    return exe.eval(ASK + f"return kage.exec({table})")


def failures(exe: Scripts, *tables: str) -> list[str]:
    """Try calls that have to raise; returns what each said."""
    tried = ", ".join(f"{{pcall(kage.exec, {one})}}" for one in tables)
    found = exe.eval(ASK + f"return {{{tried}}}")
    assert [one[0] for one in found] == [False] * len(tables), found
    return [str(one[1]) for one in found]


@whole("LC-EXEC-01")
def test_git_stash_create_prints_an_object_of_the_real_repository(
    exe: Scripts, project: Project
) -> None:
    repository(project.root)
    project.write("a.txt", "changed\n")
    found = run(exe, "{cmd='git', args={'stash', 'create'}}")
    assert found["code"] == 0, found
    assert git("cat-file", "-t", found["stdout"].strip(), cwd=project.root) == "commit"
    assert set(found) >= {"code", "stdout", "stderr"}


@whole("LC-EXEC-02", "LC-SAFE-03")
def test_arguments_arrive_as_they_are_and_no_shell_is_between(
    exe: Scripts, project: Project
) -> None:
    words = ["; touch pwned", "$(id)", "*", "a b", "--", "-n", "\\n", "'\"", "", "`id`"]
    program = (
        "import os, sys; sys.stdout.write('\\0'.join(sys.argv[1:])); "
        "sys.stderr.write(open(f'/proc/{os.getppid()}/cmdline').read())"
    )
    before = set(project.root.iterdir())
    found = run(exe, f"{{cmd='python3', args={lua_list(['-c', program, *words])}}}")
    assert found["code"] == 0, found
    assert found["stdout"].split("\0") == words
    parent = found["stderr"].split("\0")[0].rpartition("/")[2]
    assert parent not in {"sh", "bash", "dash"}, found["stderr"]
    assert set(project.root.iterdir()) == before


@whole("LC-EXEC-03")
def test_programs_start_in_the_workdir_or_below(exe: Scripts, project: Project) -> None:
    (project.root / "sub").mkdir()
    found = exe.eval(
        ASK + "return {kage.exec{cmd='pwd'}.stdout, kage.exec{cmd='pwd', cwd='sub'}.stdout,"
        " kage.exec{cmd='pwd', cwd='.'}.stdout}"
    )
    assert found == [f"{project.root}\n", f"{project.root}/sub\n", f"{project.root}\n"]


@whole("LC-EXEC-04", "LC-SAFE-03")
def test_no_place_outside_is_taken_by_exec_nor_by_fs(exe: Scripts, project: Project) -> None:
    (project.root / "a").mkdir()
    (project.root / "leak").symlink_to("/etc")
    places = ["..", "a/../..", "/etc", "leak", "a/../../x", str(project.root)]
    found = exe.eval(
        ASK + f"local out = {{}}\nfor _, place in ipairs({lua_list(places)}) do\n"
        "local a, x = pcall(kage.exec, {cmd='ls', cwd=place})\n"
        "local b, y = pcall(kage.fs.read, place)\n"
        "local c, z = pcall(kage.fs.write, place .. '/made', 'y')\n"
        "out[#out + 1] = {a, x, b, y, c, z} end return out"
    )
    for place, (ran, exec_says, read, fs_says, wrote, _) in zip(places, found, strict=True):
        assert (ran, read, wrote) == (False, False, False), place
        assert exec_says.startswith(f"kage.exec: cwd {place}: ")
        assert fs_says.startswith(f"kage.fs.read: path {place}: ")
        assert exec_says.removeprefix("kage.exec: cwd ") == fs_says.removeprefix(
            "kage.fs.read: path "
        ), place
    assert not (project.root.parent / "made").exists()


@whole("LC-EXEC-05", "LC-EXEC-06", "LC-EXEC-07")
def test_the_call_waits_and_keeps_both_streams_apart(exe: Scripts, project: Project) -> None:
    waits = "while [ ! -e gate ]; do sleep 0.02; done; echo late; echo wrong >&2; exit 3"
    both = (
        "import sys\nfor _ in range(300):\n sys.stdout.write('o'*1000)\n sys.stderr.write('e'*1000)"
    )
    exe.load(
        probe=f"{ASK}kage.register_command{{name='eval', description='', handler=function()\n"
        f"local late = kage.exec{{cmd='sh', args={lua_list(['-c', waits])}}}\n"
        "local quiet = kage.exec{cmd='true'}\n"
        f"local full = kage.exec{{cmd='python3', args={lua_list(['-c', both])}}}\n"
        "return {structured = {value = {late, quiet, #full.stdout, #full.stderr}}}\nend}"
    )
    found: list[Any] = []
    worker = threading.Thread(target=lambda: found.extend(exe.again()))
    worker.start()
    # The daemon's own loop goes on meanwhile, and the call has not returned.
    for _ in range(3):
        assert project.get("/sessions") is not None
    assert worker.is_alive()
    project.write("gate", "")
    worker.join(60)
    late, quiet, *lengths = found
    assert (late["code"], late["stdout"], late["stderr"]) == (3, "late\n", "wrong\n")
    assert (quiet["code"], quiet["stdout"], quiet["stderr"]) == (0, "", "")
    assert lengths == [300_000, 300_000]


@whole("LC-AMB-06")
def test_time_and_output_are_bounded(exe: Scripts) -> None:
    late, big, left, killed, over, zero, short = exe.eval(
        ASK
        + """
        local function sh(text, secs)
          return kage.exec{cmd='sh', args={'-c', text}, timeout_secs=secs} end
        local big = kage.exec{cmd='head', args={'-c', '2097152', '/dev/zero'}}
        big.kept, big.stdout = #big.stdout, nil
        return {sh('echo begun; sleep 600 & sleep 600', 1), big, sh('sleep 600 & echo done'),
          sh('kill -9 $$'), sh('exec truncate -s 5G too-large'),
          {pcall(kage.exec, {cmd='true', timeout_secs=0})},
          {pcall(kage.exec, {cmd='true', timeout_secs=0.5})}}"""
    )
    assert (late["code"], late["timed_out"], late["stdout"]) == (-1, True, "begun\n")
    assert (big["code"], big["truncated"], big["kept"]) == (0, True, 1024 * 1024)
    assert (left["code"], left["stdout"], left["timed_out"]) == (0, "done\n", False)
    assert left["truncated"] is False
    assert killed["code"] in (-1, 137)
    assert (over["code"], over["timed_out"]) == (-1, False), "ended by a limit, not by the clock"
    for said in (zero, short):
        assert said[0] is False
        assert "timeout_secs" in said[1]


@whole("LC-AMB-07")
def test_the_child_lives_in_a_cage_on_the_real_workdir(
    exe: Scripts, project: Project, daemon: Daemon
) -> None:
    (daemon.home / "token").write_text("operator-secret", encoding="utf-8")
    neighbour = project.root.parent / "neighbour"
    neighbour.mkdir()
    (neighbour / "plan").write_text("neighbour-secret", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connects = (
            f"import socket\nfor place in (('127.0.0.1', {port}), ('192.0.2.1', 80)):\n"
            "  try:\n    socket.create_connection(place, 2)\n    print('connected')\n"
            "  except OSError as error:\n    print('refused')"
        )
        shell = f"pwd; echo made > made.txt; cat {daemon.home}/token; cat {neighbour}/plan; "
        shell += "touch /usr/x /etc/x; touch $TMPDIR/x && echo scratch"
        found, said = exe.eval(
            ASK + f"return {{kage.exec{{cmd='sh', args={lua_list(['-c', shell])}}},"
            f" kage.exec{{cmd='python3', args={lua_list(['-c', connects])}}}}}"
        )
    assert found["stdout"] == f"{project.root}\nscratch\n"
    assert "secret" not in found["stderr"]
    assert said["stdout"].split() == ["refused", "refused"]
    made = project.root / "made.txt"
    assert made.read_text(encoding="utf-8") == "made\n"
    assert made.stat().st_uid == project.root.stat().st_uid


@whole("LC-AMB-08")
def test_the_child_sees_a_made_up_environment(exe: Scripts, project: Project) -> None:
    repository(project.root)
    project.write("a.txt", "changed\n")
    env, home, stash = exe.eval(
        ASK + "return {kage.exec{cmd='env'}, kage.exec{cmd='sh', args={'-c',"
        " 'ls -A $HOME; touch $HOME/x && cat && echo empty'}},"
        " kage.exec{cmd='git', args={'stash', 'create'}}}"
    )
    pairs = dict(one.split("=", 1) for one in env["stdout"].splitlines())
    made = {"PATH", "HOME", "TMPDIR", "USER"}
    copied = {"LANG", "LC_ALL", "LC_TIME", "TERM"}
    of_every_cage = {"PWD", "LOGNAME", "XDG_CACHE_HOME"}
    assert set(pairs) - of_every_cage == made | copied | {
        "GIT_CONFIG_GLOBAL",
        "GIT_CONFIG_NOSYSTEM",
    }
    assert {name: pairs[name] for name in copied} == {name: ENVIRONMENT[name] for name in copied}
    assert home["stdout"] == "empty\n"
    assert stash["code"] == 0, stash
    assert stash["stdout"].strip()


@whole("LC-AMB-09")
def test_what_did_not_start_is_no_exit_status(exe: Scripts, project: Project) -> None:
    outside = project.root.parent / "tool"
    outside.write_text("#!/bin/sh\necho ran\n", encoding="utf-8")
    project.write("plain", "echo ran\n")
    project.write("own", "#!/bin/sh\necho mine\n")
    for file in (outside, project.root / "plain", project.root / "own"):
        file.chmod(0o755)
    programs = ["no-such-program", str(outside), "./missing", "./plain"]
    said = failures(exe, *(f"{{cmd='{one}'}}" for one in programs))
    for cmd, words in zip(programs, said, strict=True):
        assert words.startswith("kage.exec: "), words
        assert cmd in words
    codes = exe.eval(
        ASK + "local function sh(c) return kage.exec{cmd='sh', args={'-c', 'exit ' .. c}}.code end"
        " return {sh(1), sh(126), sh(127), kage.exec{cmd='./own'}.stdout}"
    )
    assert codes == [1, 126, 127, "mine\n"]


@whole("LC-AMB-10")
def test_wrong_types_are_refused_by_name_and_unknown_keys_ignored(exe: Scripts) -> None:
    cases = {
        "{cmd=''}": "cmd",
        "{cmd='a\\0b'}": "cmd",
        "{cmd=5}": "cmd",
        "{}": "cmd",
        "{cmd='true', args={1}}": "args",
        "{cmd='true', args={'a\\0b'}}": "args",
        "{cmd='true', args='x'}": "args",
        "{cmd='true', cwd=3}": "cwd",
        "{cmd='true', timeout_secs='x'}": "timeout_secs",
    }
    for said, (table, field) in zip(failures(exe, *cases), cases.items(), strict=True):
        assert said.startswith("kage.exec: "), (table, said)
        assert field in said, (table, said)
    assert run(exe, "{cmd='true', surprise=function() end, other=1}")["code"] == 0


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


def check_git(found: Any, where: Path) -> str:
    """See that git's work inside is in the real repository; returns the commit it made."""
    for name, one in found.items():
        assert one["code"] == 0, (name, one)
    commit = found["commit"]["stdout"].strip()
    for made in (commit, found["stash"]["stdout"].strip()):
        assert git("cat-file", "-t", made, cwd=where) == "commit"
    assert (where / "a.txt").read_text(encoding="utf-8") == "one\n"
    return commit


@whole("LC-AMB-22")
def test_git_works_inside_while_hooks_and_configuration_stay_as_they_are(
    exe: Scripts, project: Project
) -> None:
    repository(project.root)
    config = (project.root / ".git" / "config").read_text(encoding="utf-8")
    tries = exe.eval(
        ASK
        + """
        local function sh(text) return kage.exec{cmd='sh', args={'-c', text}}.code end
        return {
          sh('echo x > .git/hooks/post-checkout'), sh('git config core.pager evil'),
          sh('mv .git gone'), sh('mv .git/hooks .git/hooks2'),
          sh('cp /dev/null .git/config'), sh('mv .git/config .git/c2'),
          sh('rm .git/config'), sh('ln -sf x .git/config'),
          pcall(kage.fs.write, '.git/hooks/post-checkout', 'x') and 0 or 1,
          pcall(kage.fs.write, '.git/config', 'x') and 0 or 1,
          pcall(kage.fs.write, '.git', 'x') and 0 or 1,
        }"""
    )
    assert 0 not in tries, tries
    assert (project.root / ".git" / "config").read_text(encoding="utf-8") == config
    assert not (project.root / ".git" / "hooks" / "post-checkout").exists()
    assert run(exe, "{cmd='sh', args={'-c', 'mkdir evil; echo ../evil > .git/commondir'}}")
    assert not (project.root / ".git" / "commondir").exists()
    project.write("a.txt", "changed\n")
    check_git(exe.eval(ASK + GIT_WORK), project.root)


@whole("LC-AMB-22")
def test_what_the_repository_takes_hooks_and_settings_from_stays_as_it_is(
    exe: Scripts, project: Project
) -> None:
    repository(project.root)
    shutil.rmtree(project.root / ".git" / "hooks")  # as with an empty template of git's
    project.write("shared.gitconfig", "[user]\n\tname = t\n")
    project.write("githooks/README", "hooks\n")
    git("config", "include.path", "../shared.gitconfig", cwd=project.root)
    git("config", "core.hooksPath", "githooks", cwd=project.root)
    plant = """mkdir -p .git/hooks
        for one in githooks/post-checkout .git/hooks/post-checkout; do
          printf '#!/bin/sh\\ntouch ran\\n' > $one; chmod +x $one; done
        git config -f shared.gitconfig core.fsmonitor 'touch ran'; echo x > fine.txt"""
    for _ in range(2):
        run(exe, f"{{cmd='sh', args={{'-c', [==[{plant}]==]}}}}")
        for path in ("githooks/post-checkout", ".git/hooks/post-checkout"):
            assert not (project.root / path).exists(), path
        assert "fsmonitor" not in project.read("shared.gitconfig")
        assert (project.root / "fine.txt").exists()
        git("checkout", "-q", "-f", "HEAD", cwd=project.root)
        assert not (project.root / "ran").exists()


@whole("LC-AMB-21")
def test_gits_settings_inside_are_the_operators_name_and_no_secret(
    exe: Scripts, project: Project
) -> None:
    repository(project.root)
    project.write("a.txt", "changed\n")
    commit = check_git(exe.eval(ASK + GIT_WORK), project.root)
    author = git("show", "-s", "--format=%an %ae", commit, cwd=project.root)
    assert author == "Ada ada@example.org"
    shown, wrote = exe.eval(
        ASK + "return {kage.exec{cmd='sh', args={'-c', 'cat $GIT_CONFIG_GLOBAL; git config -l'}},"
        " kage.exec{cmd='sh', args={'-c', 'echo x >> $GIT_CONFIG_GLOBAL'}}}"
    )
    for word in (TOKEN, "evil", "insteadof", "include", "credential"):
        assert word not in shown["stdout"].lower(), word
    assert "core.autocrlf=input" in shown["stdout"]
    assert f"safe.directory={project.root}" in shown["stdout"]
    assert wrote["code"] != 0
    git("config", "user.email", "repo@example.org", cwd=project.root)
    made = run(exe, "{cmd='git', args={'commit-tree', 'HEAD^{tree}', '-m', 'x'}}")
    shown = git("show", "-s", "--format=%ae", made["stdout"].strip(), cwd=project.root)
    assert shown == "repo@example.org"


@whole("LC-AMB-21")
@pytest.mark.needs_root
def test_git_works_as_root_in_a_workdir_of_another_user_without_any_settings(
    model: ModelServer,
) -> None:
    # Not below the folder of other tests, which nobody else may enter. Without KAGED_HOME, so that
    # the cache lies outside the daemon's home as it does for root.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="kgd-") as place:
        top = Path(place)
        for folder in (top, top / "cache", top / "user"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
        places = {"CONFIG": "c", "DATA": "d", "STATE": "s", "CACHE": "cache"}
        env = {f"XDG_{name}_HOME": str(top / folder) for name, folder in places.items()}
        env |= {"KAGED_HOME": "", "HOME": str(top / "user"), "XDG_RUNTIME_DIR": str(top / "r")}
        (top / "r").mkdir(mode=0o700)
        daemon = Daemon(top / "c" / "kaged", local=model.local_toml(), env=env)
        project = Project(top / "work")
        repository(project.root)
        project.write("a.txt", "changed\n")
        for path in [project.root, *project.root.rglob("*")]:
            os.chown(path, 4321, 4321)
        try:
            daemon.start()
            daemon.load(project)
            exe = Scripts(daemon, project)
            exe.grant(probe=["exec"])
            commit = check_git(exe.eval(ASK + GIT_WORK), project.root)
            author = git("show", "-s", "--format=%an <%ae>", commit, cwd=project.root)
            assert "@" in author, "a neutral identity"
            assert (project.root / "a.txt").stat().st_uid == 4321
            objects = [one for one in (project.root / ".git").rglob("*") if one.is_file()]
            assert {one.stat().st_uid for one in objects} == {4321}
        finally:
            daemon.close()


@whole("LC-AMB-22")
def test_git_works_in_a_linked_work_tree_and_a_rewritten_pointer_gives_nothing(
    daemon: Daemon, tmp_path: Path
) -> None:
    main, other = tmp_path / "main", tmp_path / "other"
    for folder in (main, other):
        folder.mkdir()
    repository(main)
    git("init", "-q", cwd=other)
    git("worktree", "add", "-q", str(tmp_path / "tree"), cwd=main)
    project = daemon.load(Project(tmp_path / "tree"))
    exe = Scripts(daemon, project)
    try:
        exe.grant(probe=["exec"])
        project.write("a.txt", "changed\n")
        check_git(exe.eval(ASK + GIT_WORK), project.root)
        tries = exe.eval(
            ASK
            + f"""
            local function sh(text) return kage.exec{{cmd='sh', args={{'-c', text}}}}.code end
            return {{sh('echo gitdir: {other}/.git > .git'), sh('mv .git x'), sh('rm .git'),
              sh('echo x > {main}/.git/hooks/pre-commit'), sh('git config user.name evil')}}"""
        )
        assert 0 not in tries
        # Even if it had been rewritten: what was found at load counts.
        (project.root / ".git").write_text(f"gitdir: {other}/.git\n", encoding="utf-8")
        seen = run(exe, f"{{cmd='ls', args={{'{other}/.git'}}}}")
        assert seen["code"] != 0
    finally:
        exe.close()


@whole("LC-AMB-22")
def test_a_repository_above_the_workdir_is_not_found(exe: Scripts, project: Project) -> None:
    git("init", "-q", cwd=project.root.parent)
    found = run(exe, "{cmd='git', args={'status'}}")
    assert found["code"] == 128, found
