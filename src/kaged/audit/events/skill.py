"""Events of skills: who loaded and ran what, and to what the operator agreed."""

from __future__ import annotations

from kaged.audit.events.types import Chapter, event

SKILLS = Chapter(
    "Skills",
    (
        event(
            "skill.agreed",
            "The operator agreed to a skill that wants account capabilities, as its files are.",
            "skill:str digest:str capabilities:list",
        ),
        event(
            "skill.loaded",
            "An agent read a skill's instructions, or one of its files.",
            "skill:str source:str digest:str",
            "file:cut",
        ),
        event(
            "skill.ran",
            "A script of a skill has ended.",
            "skill:str source:str digest:str script:cut args:int exit_code:int timed_out:bool "
            "duration_ms:num truncated:bool",
        ),
    ),
)
