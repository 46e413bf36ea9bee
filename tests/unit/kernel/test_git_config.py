"""Git's configuration: read as git reads it, and rid of commands without losing the rest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaged.kernel.git_config import (
    MalformedGitConfig,
    bears_command,
    new_commands,
    parse_git_config,
    take_back_commands,
)
from thorough import examples

HARMLESS = b"""[core]
\trepositoryformatversion = 0
\tfilemode = true
[remote "origin"]
\turl = https://example.org/a.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"]
\tremote = origin
\tmerge = refs/heads/main
[user]
\tname = A # B
"""


@pytest.mark.parametrize(
    "key",
    [
        *("core.hookspath", "core.fsmonitor", "core.sshcommand", "core.editor", "core.pager"),
        *("core.askpass", "core.gitproxy", "core.alternaterefscommand", "alias.st", "include.path"),
        *("filter.lfs.clean", "filter.x.process", "diff.x.textconv", "diff.external"),
        *("diff.x.command", "credential.helper", "credential.https://a.helper", "gpg.program"),
        *("includeif.gitdir:/x.path", "merge.x.driver", "mergetool.x.cmd", "sequence.editor"),
        *("pager.log", "remote.origin.uploadpack", "remote.o.vcs", "gpg.ssh.defaultkeycommand"),
        *("interactive.difffilter", "hook.x.command", "protocol.ext.allow", "init.templatedir"),
        *("gc.recentobjectshook", "uploadpack.packobjectshook", "sendemail.smtpserver"),
        *("trailer.x.command", "tar.x.command", "lfs.customtransfer.x.path", "man.x.cmd"),
    ],
)
def test_keys_with_commands_are_known(key: str) -> None:
    assert bears_command(key, "anything")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("branch.main.remote", "origin"),
        ("remote.origin.url", "git@example.org:a.git"),
        ("user.email", "a@example.org"),
        ("core.filemode", "true"),
        ("submodule.lib.url", "../lib.git"),
        ("submodule.lib.update", "rebase"),
        ("extensions.worktreeconfig", "true"),
        ("pull.rebase", "true"),
        ("commit.gpgsign", "true"),
        ("diff.algorithm", "histogram"),
    ],
)
def test_git_s_own_harmless_keys_are_none(key: str, value: str) -> None:
    assert not bears_command(key, value)


def test_some_keys_are_commands_by_their_value() -> None:
    assert bears_command("submodule.lib.update", "!touch x")
    assert bears_command("remote.origin.url", "ext::sh -c x")
    assert bears_command("url.ext::sh -c x.insteadof", "https://example.org/")
    assert bears_command("core.worktree", "/home/someone")
    assert bears_command("core.worktree", "../..", climb=1)
    assert not bears_command("core.worktree", "../../../lib", climb=3)


def test_harmless_changes_pass() -> None:
    assert new_commands(HARMLESS, b"[core]\n\tbare = false\n") is None
    assert new_commands(HARMLESS + b"[core]\n\teditor = vi\n", HARMLESS) == ("core.editor",)


def test_commands_are_taken_back_and_the_rest_stays() -> None:
    old = HARMLESS + b'[credential "https://x"]\n\thelper = store # mine\n[alias]\n\tst = status\n'
    new = (
        b'[core] fsmonitor = "touch x"\n'
        + HARMLESS.replace(b"name = A", b"name = C")
        + b'[alias]\n\tst = "!sh -c x"\n[branch "new"]\n\tremote = origin'
    )
    clean = take_back_commands(new, old)
    said = [(one.key, one.value) for one in parse_git_config(clean)]
    assert ("user.name", "C") in said
    assert ("branch.new.remote", "origin") in said
    assert ("alias.st", "status") in said
    assert ("credential.https://x.helper", "store") in said
    assert not any(key == "core.fsmonitor" or "sh -c" in (value or "") for key, value in said)
    assert new_commands(clean, old) is None


def test_what_does_not_parse_is_replaced() -> None:
    for broken in (b"[core\n", b"x = y\n", b'[a "b]\nx=y', b"[a]\nx = \\q\n", b'[a]\nx = "y\n'):
        with pytest.raises(MalformedGitConfig):
            parse_git_config(broken)
        assert new_commands(broken, HARMLESS) == ("unreadable",)
        assert take_back_commands(broken, HARMLESS) == HARMLESS


PIECES = st.lists(
    st.sampled_from(
        [
            *("[core]", "[a.B]", '[Remote "x y"]', '[r "q\\"q"]', "[", "]", '"', "\\", "\\\n", "#"),
            *(";", "=", " ", "\t", "\n", "\r\n", "key", "Editor", "x-1", "\\n", "\\t", "true", "é"),
            *(" = v\n", "\n\tname = a b \n", "\n[alias]\nst = !x\n", "_", ".", "1"),
        ]
    ),
    max_size=24,
).map("".join)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=PIECES)
def test_every_text_is_read_as_git_reads_it(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "git-config-under-test"
    file.write_bytes(text.encode())
    git = _listed(file)
    try:
        ours = parse_git_config(text.encode())
    except MalformedGitConfig:
        return  # replaced by the old text: stricter than git is always safe
    assert git is not None, text
    assert [one.key.encode("latin-1") for one in ours] == [key for key, _ in git]
    for one, (_, value) in zip(ours, git, strict=True):
        assert _folded(one.value) == _folded(None if value is None else value.decode("latin-1"))


def _listed(file: Path) -> list[tuple[bytes, bytes | None]] | None:
    command = ["git", "config", "--file", str(file), "--list", "-z", "--no-includes"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        return None
    found: list[tuple[bytes, bytes | None]] = []
    for record in done.stdout.split(b"\0")[:-1]:
        key, separator, value = record.partition(b"\n")
        found.append((key, value if separator else None))
    return found


def _folded(value: str | None) -> str | None:
    # Versions of git differ in whether white space inside a value is kept as it is.
    return None if value is None else " ".join(value.split())
