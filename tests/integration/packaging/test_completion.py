"""Completion completes: in a real bash, and in the words that zsh and fish ask with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
KAGED = str(BIN / "kaged")
ENV = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": "/nonexistent"}


def ask(**variables: str) -> str:
    done = subprocess.run(
        [KAGED], env={**ENV, **variables}, capture_output=True, text=True, check=False, timeout=60
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def in_bash(*words: str) -> list[str]:
    """Complete the last word in a bash that has taken the script in, as a person's would."""
    script = (
        'eval "$(kaged completion bash)"\n'
        f"COMP_WORDS=({' '.join(words)})\nCOMP_CWORD={len(words) - 1}\n"
        'function=$(complete -p kaged | sed "s/.*-F \\([^ ]*\\).*/\\1/")\n'
        '"$function" kaged\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=ENV, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("kaged", "aud"), ["audit"]),
        (("kaged", "audit", "ver"), ["verify"]),
        (("kaged", "run", "--age"), ["--agent"]),
        (("kaged", "completion", "z"), ["zsh"]),
    ],
)
def test_bash_completes_commands_options_and_values(
    words: tuple[str, ...], wanted: list[str]
) -> None:
    assert in_bash(*words) == wanted


def test_zsh_is_answered_with_commands_and_their_help() -> None:
    said = ask(_KAGED_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="kaged audit ver")
    assert '"verify":"' in said
    assert "tail" not in said


def test_fish_is_answered_with_commands_and_their_help() -> None:
    said = ask(
        _KAGED_COMPLETE="complete_fish",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
        _TYPER_COMPLETE_ARGS="kaged audit ver",
    )
    assert [line.split("\t")[0] for line in said.splitlines()] == ["verify"]
