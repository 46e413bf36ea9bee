"""Protected paths: nothing that an agent writes runs with the operator's next command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.project import Project
from whole.harness.scripts import git, repository

HOOK = "#!/bin/sh\ntouch ran\n"
RUN = (
    ".git/hooks/pre-commit",
    ".envrc",
    ".vscode/tasks.json",
    ".idea/a.xml",
    ".devcontainer/devcontainer.json",
    ".husky/pre-commit",
    ".mcp.json",
    ".claude/settings.json",
    ".cursor/mcp.json",
    ".codex/config.toml",
    ".npmrc",
    ".yarnrc.yml",
    ".yarnrc",
    "pip.conf",
    "deep/down/.envrc",
)
REVIEWED = (
    ".github/workflows/ci.yml",
    ".gitlab-ci.yml",
    ".pre-commit-config.yaml",
    "Makefile",
    "AGENTS.md",
    "CLAUDE.md",
    ".gitattributes",
)
KEYS = (
    ("core.hooksPath", "hooked"),
    ("core.fsmonitor", "touch ran; false"),
    ("core.sshCommand", "touch ran"),
    ("core.editor", "touch ran"),
    ("core.pager", "touch ran"),
    ("alias.status", "!touch ran"),
    ("filter.x.clean", "touch ran"),
    ("diff.x.textconv", "touch ran"),
    ("credential.helper", "!touch ran"),
    ("include.path", "../commands"),
    ("includeIf.gitdir:/.path", "../commands"),
    ("gpg.program", "touch ran"),
    ("sequence.editor", "touch ran"),
)
Sh = Callable[[str], dict[str, Any]]


def planting(path: str) -> str:
    """Return the command that plants a program at a path."""
    text = HOOK.replace("\n", "\\n")
    return f"mkdir -p $(dirname {path}); printf '{text}' > {path} && chmod 755 {path}"


def taken(daemon: Daemon, root: Path) -> list[str]:
    """Return the paths below a folder that were taken back, as the audit log has them."""
    rows = [one["data"]["path"] for one in daemon.audit("protected_path.taken_back")]
    return [one.removeprefix(f"{root}/") for one in rows if one.startswith(f"{root}/")]


def refused(daemon: Daemon, project: Project) -> list[dict[str, Any]]:
    """Return what was refused in a project, as the audit log has it."""
    rows = daemon.audit("protected_path.refused", project_id=project.id)
    return [one["data"] for one in rows]


def test_a_command_plants_nothing_that_outlives_it(
    daemon: Daemon, project: Project, sh: Sh, commits: Callable[[], bool]
) -> None:
    for path in RUN:
        before = {one.name for one in project.root.iterdir()}
        result = sh(planting(path))
        assert not (project.root / path).exists(), path
        if path.startswith(".git/"):
            assert result["exit_code"] != 0
            assert "Read-only file system" in result["stdout"]
        else:
            assert [one["path"] for one in result["taken_back"]] == [path], result
            # Nothing else of it is left either, and what it held can be looked at.
            assert {one.name for one in project.root.iterdir()} - before <= {"deep"}
    rows = [one["data"] for one in daemon.audit("protected_path.taken_back")]
    mine = [one for one in rows if one["path"].startswith(f"{project.root}/")]
    assert len(mine) == len(RUN) - 1
    assert all(Path(one["moved_to"]).read_text(encoding="utf-8") == HOOK for one in mine)
    assert not commits()


def test_file_tools_refuse_every_path_of_the_list(daemon: Daemon, project: Project) -> None:
    project.write("plain.txt", "one\n")
    (project.root / "hooks").symlink_to(".git/hooks")
    for path in (*RUN, "hooks/pre-push", ".git/modules/a/hooks/x", "./deep/../.envrc", ".ENVRC"):
        for tool, params in (
            ("file.write", {"content": HOOK}),
            ("file.create", {"content": HOOK}),
            ("edit.text", {"old_string": "a", "new_string": "b"}),
        ):
            error = project.fail(tool, path=path, **params)
            assert error["code"] == "path_protected", (tool, path, error)
            assert "allow_protected" in str(error), error
        assert not (project.root / path).exists()
    body = {"agent": "primary", "tool": "file.write", "params": {"path": ".envrc", "content": "x"}}
    shown = project.post("/tools/explain", body)
    (gate,) = [one for one in shown["gates"] if one["passed"] is False]
    assert gate["rule"] == "tool.protected_path"
    assert "allow_protected" in gate["remedy"]
    assert ".envrc" in gate["remedy"]
    found = refused(daemon, project)
    assert {(".envrc", "file.write"), (".envrc", "edit.text")} <= {
        (one["path"], one["who"]) for one in found
    }
    project.call("file.write", path="plain2.txt", content="fine\n")


def test_file_tools_judge_git_s_configuration_by_its_content(project: Project) -> None:
    text = project.read(".git/config")
    harmless = f'{text}[branch "x"]\n\tremote = origin\n'
    project.call("file.read", path=".git/config")
    project.call("file.write", path=".git/config", content=harmless)
    assert project.read(".git/config") == harmless
    for key, value in KEYS:
        section, _, rest = key.partition(".")
        sub, _, name = rest.rpartition(".")
        head = f'[{section} "{sub}"]' if sub else f"[{section}]"
        error = project.fail(
            "file.write", path=".git/config", content=f'{harmless}{head}\n\t{name} = "{value}"\n'
        )
        assert error["code"] == "path_protected", (key, error)
        assert project.read(".git/config") == harmless
    # What only looks like a repository, and a `.git` that is a file, are closed as well.
    assert project.fail("file.write", path="n/.git", content="gitdir: x")["code"] == (
        "path_protected"
    )
    project.call("file.create", path="bare/HEAD", content="ref: refs/heads/main\n")
    error = project.fail("file.create", path="bare/config", content="[core]\n\tfsmonitor = x\n")
    assert error["code"] == "path_protected"
    assert project.fail("file.create", path="bare/hooks/x", content="x")["code"] == "path_protected"


@pytest.mark.parametrize(("key", "value"), KEYS, ids=[key for key, _ in KEYS])
def test_a_command_bearing_key_is_taken_back_and_the_rest_stays(
    project: Project, sh: Sh, commits: Callable[[], bool], key: str, value: str
) -> None:
    project.write("commands", "[core]\n\tfsmonitor = touch ran\n")
    plant = f"mkdir -p hooked; {planting('hooked/pre-commit')}; git config '{key}' '{value}'"
    done = sh(f"{plant}; git config branch.new.remote origin; git config user.name agent")
    # Once, or again: the look may fall between git's reading of the file and its writing anew.
    assert done["taken_back"]
    wanted = key.lower() if "gitdir" not in key else "includeif.gitdir:/.path"
    for one in done["taken_back"]:
        assert (one["path"], one["keys"]) == (".git/config", [wanted])
    listed = git("config", "--file", ".git/config", "--list", cwd=project.root)
    assert key.lower() not in listed.lower()
    assert "branch.new.remote=origin" in listed
    assert "user.name=agent" in listed
    assert project.read("commands").count("fsmonitor") == 1  # it was never git's
    assert not commits()


def test_what_the_operator_s_configuration_names_is_protected_too(
    daemon: Daemon, project: Project, sh: Sh, commits: Callable[[], bool]
) -> None:
    project.write("shared.gitconfig", "[user]\n\tname = t\n")
    project.write("githooks/README", "hooks\n")
    git("config", "include.path", "../shared.gitconfig", cwd=project.root)
    git("config", "core.hooksPath", "githooks", cwd=project.root)
    result = sh(
        f"{planting('githooks/pre-commit')}; git config -f shared.gitconfig core.fsmonitor 'x y';"
        " git config -f shared.gitconfig user.email n@n"
    )
    assert {one["path"] for one in result["taken_back"]} == {
        "githooks/pre-commit",
        "shared.gitconfig",
    }
    assert project.read("shared.gitconfig").count("n@n") == 1
    assert git("config", "core.hooksPath", cwd=project.root).strip() == "githooks"
    for path, text in (
        ("githooks/pre-commit", HOOK),
        ("shared.gitconfig", "[alias]\n\tci = !touch ran\n"),
    ):
        project.call("file.read", path="shared.gitconfig")
        error = project.fail("file.write", path=path, content=text)
        assert error["code"] == "path_protected", error
    assert not commits()


def test_nested_repositories_count_from_their_first_moment(
    project: Project, sh: Sh, commits: Callable[[], bool]
) -> None:
    made = sh(
        "git init -q inner && cd inner && git config user.name x && git config user.email x@x && "
        f"git config core.fsmonitor 'touch ran' ; {planting('.git/hooks/pre-commit')}; cd ..; "
        f"git init -q --bare bare.d; {planting('bare.d/hooks/post-update')}; "
        # When kaged puts something back in the middle of the copy, cp fails; the rest still counts.
        "mkdir -p odd; cp -r inner/.git odd/data; echo 'gitdir: data' > odd/.git; "
        "git config -f odd/data/config alias.st '!touch ran'"
    )
    paths = {one["path"] for one in made["taken_back"]}
    assert {
        "inner/.git/config",
        "inner/.git/hooks/pre-commit",
        "bare.d/hooks/post-update",
        "odd/data/config",
    } <= paths, paths
    assert (project.root / "inner/.git/hooks/pre-commit.sample").exists()
    # The second command, in the repository that exists by now.
    again = sh(f"cd inner; {planting('.git/hooks/pre-push')}; touch f; git add f; git commit -qm f")
    assert again["exit_code"] == 0, again
    assert not (project.root / "inner/.git/hooks/pre-push").exists()
    (inner,) = [project.root / "inner"]
    git("commit", "-q", "--allow-empty", "-m", "mine", cwd=inner, home=inner)
    assert not (inner / "ran").exists()
    # A nested repository is the agent's to remove again.
    assert sh("rm -rf inner odd bare.d")["exit_code"] == 0
    assert not commits()


def test_a_submodule_s_hooks_are_closed(project: Project, sh: Sh, tmp_path: Path) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    git("init", "-q", "-b", "main", cwd=library)
    git("commit", "-q", "--allow-empty", "-m", "one", cwd=library)
    allow = ("-c", "protocol.file.allow=always")
    git(*allow, "submodule", "--quiet", "add", str(library), "lib", cwd=project.root)
    git("commit", "-q", "-m", "lib", cwd=project.root)
    result = sh(
        f"{planting('.git/modules/lib/hooks/pre-commit')}; "
        "git -C lib config core.fsmonitor 'touch ran'; cd lib && touch x && git add x && "
        "git -c user.name=a -c user.email=a@a commit -qm x"
    )
    assert result["exit_code"] == 0, result
    assert [one["path"] for one in result["taken_back"]] == [".git/modules/lib/config"]
    hooks = project.root / ".git/modules/lib/hooks"
    assert not (hooks / "pre-commit").exists()
    assert git("config", "core.worktree", cwd=project.root / "lib").strip() == "../../../lib"


def test_worktrees_count_wherever_their_metadata_lies(daemon: Daemon, tmp_path: Path) -> None:
    root, main = tmp_path / "w", tmp_path / "w" / "main"
    main.mkdir(parents=True)
    git("init", "-q", "-b", "main", cwd=main)
    git("commit", "-q", "--allow-empty", "-m", "one", cwd=main)
    git("worktree", "add", "-q", str(root / "tree"), cwd=main)
    git("config", "user.name", "t", cwd=main)
    git("config", "user.email", "t@t", cwd=main)
    cage = {"fs": [{"mode": "rw", "path": "./"}], "capabilities": ["shell"]}
    project = daemon.load(Project(root, cage=cage))
    result = project.call(
        "shell.bash",
        command=f"cd tree; {planting('../main/.git/hooks/pre-commit')}; "
        "git config extensions.worktreeConfig true; git config --worktree core.pager 'touch ran'; "
        "git config alias.ci '!touch ran'; echo x > f && git add f && git commit -qm f --no-verify",
    )
    assert result["exit_code"] == 0, result
    assert {one["path"] for one in result["taken_back"]} == {
        "main/.git/config",
        "main/.git/worktrees/tree/config.worktree",
    }
    assert "Read-only file system" in result["stdout"]
    assert git("config", "extensions.worktreeConfig", cwd=root / "tree").strip() == "true"
    assert "f" in git("log", "-1", "--format=%s", cwd=root / "tree")
    git("commit", "-q", "--allow-empty", "-m", "mine", cwd=root / "tree")
    assert not list(root.rglob("ran"))


def test_git_works_in_the_cage_as_before(project: Project, sh: Sh) -> None:
    """Every operation ends as it does outside, also with protected files in the history."""
    project.write(".npmrc", "a=1\n")
    project.write(".vscode/settings.json", "{}\n")
    git("add", "-A", cwd=project.root)
    git("commit", "-q", "-m", "with settings", cwd=project.root)
    git("branch", "other", "HEAD~1", cwd=project.root)  # where they are not
    for command in (
        "echo two > b.txt && git add b.txt && git commit -qm two",
        (
            "git branch side && git checkout -q -b work && echo three > c.txt && git add -A && "
            "git commit -qm three"
        ),
        "echo four >> a.txt && git stash -q && git stash pop -q && git commit -qam four",
        (
            "git checkout -q side && echo s > s.txt && git add s.txt && git commit -qm s && "
            "git checkout -q work && git rebase -q side"
        ),
        (
            "git worktree add -q tree && cd tree && echo t > t.txt && git add t.txt && "
            "git commit -qm t"
        ),
        "git checkout -q other",
        "git checkout -q main",
        "git remote add origin https://example.org/x.git && git config branch.main.remote origin",
        "git merge -q work",
        "git worktree remove tree && git branch -q -D tree",
    ):
        result = sh(f"set -e; {command}; git status --porcelain")
        assert result["exit_code"] == 0, (command, result)
        assert result["stdout"].strip() in {"", "?? tree/"}, (command, result)
        assert not result.get("taken_back"), (command, result)
    assert git("status", "--porcelain", cwd=project.root).strip() == ""
    git("fsck", "--no-dangling", cwd=project.root)
    assert project.read(".npmrc") == "a=1\n"


def test_an_existing_file_has_its_old_content_back(project: Project, sh: Sh) -> None:
    """A rebase over a commit that changes a protected file ends; then the file is the old one."""
    project.write(".npmrc", "ignore-scripts=true\n").chmod(0o640)
    project.write(".envrc", "export A=1\n")
    git("add", ".npmrc", cwd=project.root)
    git("commit", "-q", "-m", "npmrc", cwd=project.root)
    result = sh(
        "set -e; git checkout -q -b evil; echo bad > .npmrc; git commit -qam evil; "
        "echo x > x; git add x; git commit -qm x; git checkout -q main; echo y > y; git add y; "
        "git commit -qm y; git rebase -q main evil; echo export A=2 > .envrc"
    )
    assert result["exit_code"] == 0, result
    assert {one["path"] for one in result["taken_back"]} == {".npmrc", ".envrc"}
    assert project.read(".npmrc") == "ignore-scripts=true\n"
    assert (project.root / ".npmrc").stat().st_mode & 0o777 == 0o640
    assert project.read(".envrc") == "export A=1\n"
    assert not (project.root / ".git/rebase-merge").exists()
    assert git("log", "-3", "--format=%s", cwd=project.root).split() == ["x", "evil", "y"]


def test_without_a_repository_folders_that_are_there_are_closed(
    daemon: Daemon, tmp_path: Path
) -> None:
    cage = {"fs": [{"mode": "rw", "path": "./"}], "capabilities": ["shell"]}
    project = Project(tmp_path / "plain", cage=cage)
    project.write(".vscode/settings.json", "{}\n")
    project.write(".envrc", "export A=1\n")
    daemon.load(project)
    for name in ("tasks.json", "settings.json"):
        result = project.call("shell.bash", command=f"echo evil > .vscode/{name}; echo x > .envrc")
        assert "Read-only file system" in result["stdout"], result
        assert [one["path"] for one in result["taken_back"]] == [".envrc"]
    assert project.read(".vscode/settings.json") == "{}\n"
    assert not (project.root / ".vscode/tasks.json").exists()
    # From the moment there is a repository, git may write its work tree.
    result = project.call("shell.bash", command="git init -q . && echo x > fine")
    assert result["exit_code"] == 0
    result = project.call("shell.bash", command="echo evil > .vscode/tasks.json")
    assert [one["path"] for one in result["taken_back"]] == [".vscode/tasks.json"]


def test_a_folder_that_takes_the_place_of_a_closed_one_is_not_closed(
    project: Project, sh: Sh, commits: Callable[[], bool]
) -> None:
    """The mount of a nested repository's hooks goes where the repository is moved to."""
    inner = project.root / "inner"
    inner.mkdir()
    repository(inner, {"b.txt": "two\n"})
    for name in ("pre-commit", "post-commit"):
        result = sh(
            "cd inner && mv .git ../moved && mkdir .git && cp -r ../moved/[!hc]* .git && "
            f"git config -f .git/config core.bare false && {planting(f'.git/hooks/{name}')} && "
            "git status -s > seen; sleep 1.2; rm -rf seen"
        )
        assert f"inner/.git/hooks/{name}" in {one["path"] for one in result["taken_back"]}, result
        assert not (inner / ".git/hooks" / name).exists()
        git("commit", "-q", "--allow-empty", "-m", "mine", cwd=inner, home=inner)
        assert not (inner / "ran").exists()
        sh("rm -rf moved; rm -rf moved")
    assert not commits()


def test_links_and_odd_things_lead_nowhere(
    project: Project, sh: Sh, tmp_path: Path, commits: Callable[[], bool]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept\n", encoding="utf-8")
    result = sh(
        f"ln -s {outside} .vscode; ln -s {outside}/kept .envrc; mkfifo .npmrc; mkdir pip.conf; "
        f"mkdir evil; {planting('evil/pre-commit')}; mv .git .g; mkdir .git; cp -r .g/* .git/ "
        "2>/dev/null; ln -sfn ../evil .git/hooks; true"
    )
    assert result["exit_code"] == 0
    assert (outside / "kept").read_text(encoding="utf-8") == "kept\n"
    assert [one.name for one in outside.iterdir()] == ["kept"]
    for path in (".vscode", ".envrc", ".npmrc"):
        assert not (project.root / path).is_symlink()
        assert not (project.root / path).exists()
    assert not commits()


def test_reviewed_files_pass_and_are_named(daemon: Daemon, project: Project, sh: Sh) -> None:
    for path in REVIEWED:
        result = sh(planting(path))
        assert [one["path"] for one in result["to_review"]] == [path], result
        assert (project.root / path).exists()
    project.call("file.create", path="sub/Makefile", content="all:\n")
    rows = [one["data"] for one in daemon.audit("protected_path.changed")]
    paths = [one["path"] for one in rows]
    assert {f"{project.root}/{path}" for path in REVIEWED} <= set(paths)
    (by_tool,) = [one for one in rows if one["path"] == "./sub/Makefile"]
    assert by_tool["who"] == "primary"


def test_an_operator_allows_a_path_and_sees_its_digest(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    root = tmp_path / "shop"
    allowed = f'allow_protected = [{{ project = "{root}", path = ".husky" }}]\n'
    daemon = own(config=f'[tools]\n{allowed}reviewed_files = "refuse"\n')
    daemon.start()
    project = Project(root, cage={"fs": [{"mode": "rw", "path": "./"}], "capabilities": ["shell"]})
    git("init", "-q", cwd=root)
    daemon.load(project)
    project.call("file.create", path=".husky/pre-commit", content=HOOK)
    result = project.call("shell.bash", command=planting(".husky/pre-push"))
    assert "taken_back" not in result
    assert (root / ".husky/pre-push").exists()
    for path in (".envrc", "Makefile", "other/.husky/x"):
        assert project.fail("file.create", path=path, content="x")["code"] == "path_protected"
        (one,) = project.call("shell.bash", command=planting(path))["taken_back"]
        assert one["path"] == path
    shown = daemon.cli("cage", "explain", "primary", "--project", str(root)).out
    (line,) = [one for one in shown.splitlines() if "sha256 now" in one]
    assert ".husky" in line
    (root / ".husky/pre-push").write_text("other\n", encoding="utf-8")
    again = daemon.cli("cage", "explain", "primary", "--project", str(root)).out
    assert line not in again.splitlines()
    # Without the line the same paths are closed again, for undo as well.
    project.call("file.read", path=".husky/pre-commit")
    project.call("file.write", path=".husky/pre-commit", content="changed\n")
    daemon.stop()
    daemon.write("config.toml", '[daemon]\nbind = "127.0.0.1:0"\n')
    daemon.start()
    daemon.load(project)
    error = daemon.error("POST", f"/projects/{project.id}/undo", {})
    assert error["code"] == "path_protected", error
    assert project.read(".husky/pre-commit") == "changed\n"
    assert refused(daemon, project)[-1]["who"] == "undo"


def test_a_grant_of_a_protected_path_is_the_project_s_word_only(
    daemon: Daemon, tmp_path: Path
) -> None:
    root = tmp_path / "p"
    for folder in (".vscode", "src"):
        (root / folder).mkdir(parents=True)
    (root / ".vscode/tasks.json").write_text("{}\n", encoding="utf-8")
    git("init", "-q", cwd=root)
    entries = ["./src", "./.vscode", "./.git/hooks", "./.*/*.json"]
    fs = [{"mode": "rw", "path": path} for path in entries]
    project = Project(root, cage={"fs": fs, "capabilities": ["shell"]})
    daemon.load(project)
    result = project.call(
        "shell.bash",
        command="cd ..; echo x > .vscode/a; echo x > .vscode/tasks.json; "
        "echo x > .git/hooks/pre-commit; echo x > src/ok",
        cwd="src",
    )
    assert result["stdout"].count("Read-only file system") == 3, result
    assert (root / "src/ok").exists()
    assert not (root / ".vscode/a").exists()
    assert (root / ".vscode/tasks.json").read_text(encoding="utf-8") == "{}\n"
    assert not (root / ".git/hooks/pre-commit").exists()
