"""What an agent's system prompt says about skills and accounts: bounded, and one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kaged.config.skill_file import DESCRIPTION_LIMIT_CHARS
from kaged.skills.library import Skill

LOAD_TOOL: Final = "skill.load"
RUN_TOOL: Final = "skill.run"
BLOCK_LIMIT_CHARS: Final = 16_000
OFFERED_LIMIT: Final = 100
_SHORT_CHARS: Final = 120


def skills_block(skills: Sequence[Skill], named: Callable[[str], str], *, can_run: bool) -> str:
    """Return the routing block for these skills; empty without any.

    `named` gives the name by which the model knows a tool. Descriptions are written by whoever
    wrote the skill: each is one line, so that it cannot look like anything else of the prompt.
    """
    if not skills:
        return ""
    head = (
        "Skills are instructions and scripts for certain tasks. Before you begin a task that one "
        f"of these is for, load it with {named(LOAD_TOOL)} and follow it."
    )
    if can_run:
        head += f" Run the scripts that come with it with {named(RUN_TOOL)}."
    shown = skills[:OFFERED_LIMIT]
    for limit in (DESCRIPTION_LIMIT_CHARS, _SHORT_CHARS, 0):
        lines = [head, *(_line(one, limit) for one in shown)]
        if sum(map(len, lines)) <= BLOCK_LIMIT_CHARS:
            break
    return "\n".join(lines)


def accounts_line(*, only_skills: bool, named: Callable[[str], str]) -> str:
    """Return what an agent is told that may use people's accounts."""
    if only_skills:
        return (
            "Mail, calendars and other accounts of the person you work for can be used by scripts "
            f"of skills only: run these with {named(RUN_TOOL)}. Never ask for a password or a "
            "token."
        )
    return (
        "Use mail, calendars and other accounts of the person you work for with the command "
        "`ash-sb capability`: `list` shows what there is, `describe` the operations with their "
        "input, `invoke` runs one, `auth begin` gives the person a link when an account is "
        "missing. Never ask for a password or a token."
    )


def one_line(text: str, limit: int) -> str:
    """Return a text of somebody else as one line of at most `limit` characters."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


def _line(skill: Skill, limit: int) -> str:
    said = one_line(skill.file.description, limit) if limit else ""
    return f"- {skill.name}: {said}" if said else f"- {skill.name}"
