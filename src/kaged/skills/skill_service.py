"""`SkillService`: which skills the agents of a project may use, and what people see of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kaged.base import JsonObject, JsonValue, KagedError, Tasks
from kaged.base.checks import CheckRow, CheckStatus
from kaged.base.lazy_dataclass import dataclass
from kaged.config.skill_settings import policy_of_skill, skill_env
from kaged.kernel.describe import describe_denial
from kaged.kernel.skill_policy import decide_skill_use
from kaged.projects.loaded import no_usable_project
from kaged.skills.consent import SkillConsents, require_shown, skill_ask
from kaged.skills.copies import SkillCopies
from kaged.skills.library import FoundSkills, Skill, SkillLibrary, SkillSource
from kaged.tools import ToolError

if TYPE_CHECKING:
    from kaged.config.agents import AgentTree
    from kaged.config.providers import SkillSection
    from kaged.config.skill_file import SkillMetadata
    from kaged.kernel.identity import Actor

PROJECT_PLACES: Final = (".kaged/skills", ".claude/skills")
"""Where a project keeps skills; the first counts where both have one of the same name."""

OPERATOR_PLACE: Final = "skills"
OWNER: Final = "skill"
"""Whose `skill.load` and `skill.run` are: the built-in tools are a closed list (AT-AMB-44)."""

WHAT: Final = "Skills of the operator: instructions and scripts for agents."
_NAMED: Final = 20


class SkillNotFound(ToolError):
    """The project has no such skill that could be used."""

    code = "skill_not_found"


class SkillNotAgreed(ToolError):
    """The operator has not agreed to the skill as it is now."""

    code = "skill_not_agreed"


class SkillDenied(ToolError):
    """The skill is switched off, or may not be used in this chat."""

    code = "skill_denied"


@dataclass(slots=True)
class _ProjectSkills:
    """The skills of one loaded project; a restricted one has none."""

    library: SkillLibrary
    restricted: bool
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked: frozenset[str] = frozenset()


class SkillService:
    """Finds skills anew at every use, so that a changed file counts at once.

    `operator_metadata` is what the files of the operator's skills say about access, kept up to date
    for the gates of account calls.
    """

    def __init__(
        self,
        home: Path,
        settings: Callable[[], Mapping[str, SkillSection]],
        consents: SkillConsents,
        copies: SkillCopies,
    ) -> None:
        place = home / OPERATOR_PLACE
        self._own = _ProjectSkills(
            SkillLibrary(SkillSource.OPERATOR, [place], place), restricted=False
        )
        self._settings = settings
        self._consents = consents
        self._copies = copies
        self._projects: dict[str, _ProjectSkills] = {}
        self._tasks = Tasks("skills")
        self.operator_metadata: dict[str, SkillMetadata] = {}
        self._last = FoundSkills({}, {})

    async def start(self) -> None:
        """Read the operator's skills, which the gates of account calls know by their names."""
        await self._look_own()

    async def close(self) -> None:
        """Stop looking."""
        await self._tasks.close()

    # -- projects --------------------------------------------------------------------------------

    def project_loaded(self, project_id: str, tree: AgentTree) -> None:
        """Take in a project, or its files read anew; what its skills want is asked for."""
        root = tree.project.root
        places = [root / one for one in PROJECT_PLACES]
        made = _ProjectSkills(
            SkillLibrary(SkillSource.PROJECT, places, root), restricted=tree.restricted
        )
        before = self._projects.get(project_id)
        made.asked = frozenset() if before is None else before.asked
        self._projects[project_id] = made
        self._tasks.start(self._look(project_id), f"look {project_id}")

    def project_unloaded(self, project_id: str) -> None:
        """Forget a project and what its skills ask for."""
        known = self._projects.pop(project_id, None)
        for name in known.asked if known is not None else ():
            self._consents.forget(name, project_id)

    # -- for agents ------------------------------------------------------------------------------

    def admits(self, owner: str, project_id: str) -> bool:
        """Return whether a project's agents have use for an owner's tools: for ours with skills.

        Asked when tools are given out, so it only looks whether there is a folder for them.
        """
        if owner != OWNER:
            return True
        project = self._projects.get(project_id)
        places = [*self._own.library.places]
        if project is not None and not project.restricted:
            places += project.library.places
        return any(place.is_dir() for place in places)

    async def offered(self, project_id: str, actor: Actor | None) -> Sequence[Skill]:
        """Return the skills that an agent is told about when it acts for somebody, by name."""
        found = await self._look(project_id)
        return self._usable(found, project_id, actor)

    async def require(self, project_id: str, name: str, actor: Actor | None) -> Skill:
        """Return a skill that may be used now, on behalf of somebody.

        Raises:
            SkillNotFound, SkillNotAgreed, SkillDenied: it may not.
        """
        found = await self._look(project_id)
        skill = found.skills.get(name)
        if skill is None:
            raise self._not_found(found, name, project_id, actor)
        denial = self._denial(skill, actor)
        if denial is not None:
            raise SkillDenied(f"{denial[0].upper()}{denial[1:]}.", skill=name)
        if not self._consents.agreed(skill, project_id):
            raise SkillNotAgreed(
                f"The operator has not agreed to the skill {name} as it is now.",
                fix="Ask the operator to look at `kaged inbox`.",
                skill=name,
                digest=skill.digest,
            )
        return skill

    async def files_of(self, skill: Skill) -> Path:
        """Return the folder with exactly the files of a skill.

        Raises:
            KagedError: `skill_changed`, `skill_metadata_invalid`; they are others by now.
            OSError: the cache cannot be written.
        """
        return await asyncio.to_thread(self._copies.ensure, skill)

    def env_of(self, skill: Skill) -> dict[str, str]:
        """Return the variables that the operator's settings give to a skill's scripts."""
        return skill_env(skill.name, self._settings())

    # -- for people ------------------------------------------------------------------------------

    async def list(self, project_id: str) -> JsonObject:
        """Describe the skills of a project and the operator's, refused ones too."""
        found = await self._look(project_id)
        known: dict[str, JsonObject] = {
            name: self._view(one, project_id) for name, one in found.skills.items()
        }
        known |= {name: one.as_json() for name, one in found.refused.items()}
        rows: list[JsonValue] = [known[name] for name in sorted(known)]
        return {"skills": rows, "restricted": self._project(project_id).restricted}

    async def show(self, project_id: str, name: str) -> JsonObject:
        """Describe one skill with its instructions. Raises SkillNotFound."""
        found = await self._look(project_id)
        if name in found.refused:
            return {**found.refused[name].as_json(), "instructions": "", "ask": []}
        skill = found.skills.get(name)
        if skill is None:
            raise self._not_found(found, name, project_id, None)
        asked: list[JsonValue] = [*skill_ask(skill).lines()]
        shown = self._view(skill, project_id)
        return {**shown, "instructions": skill.file.instructions, "ask": asked}

    async def agree(self, project_id: str, name: str, digest: str | None, who: Actor) -> JsonObject:
        """Agree to a skill as it is, which is as it was shown under `digest`.

        Raises:
            KagedError: `operator_only`; `skill_changed`; `skill_not_found`.
        """
        if who.is_person:
            raise KagedError("Only the operator may do this.", code="operator_only")
        found = await self._look(project_id)
        skill = found.skills.get(name)
        if skill is None:
            raise self._not_found(found, name, project_id, None)
        require_shown(skill, digest)
        if not self._consents.agreed(skill, project_id):
            await self._consents.agree(skill, project_id, who)
        return self._view(skill, project_id)

    def row(self) -> CheckRow:
        """Return doctor's row about the operator's skills, as they were at the last look."""
        refused = self._last.refused.values()
        if refused:
            said = "; ".join(one.reason for one in list(refused)[:_NAMED])
            fix = "Correct the files; `kaged skill check FOLDER` says more."
            return CheckRow("skills", CheckStatus.WARN, WHAT, said, fix)
        count = len(self._last.skills)
        return CheckRow("skills", CheckStatus.OK, WHAT, f"{count} can be used" if count else "none")

    # -- own -------------------------------------------------------------------------------------

    async def _look(self, project_id: str) -> FoundSkills:
        """Return what a project's agents could have now, and ask for what nobody agreed to."""
        project = self._project(project_id)
        own = await self._look_own()
        if project.restricted:
            # Nobody agreed to what its files say, and a skill says more than any other of them.
            self._ask(project, project_id, {})
            return own
        async with project.lock:
            found = await asyncio.to_thread(project.library.look)
        skills = dict(found.skills)
        refused = {**found.refused, **own.refused}
        for name in own.skills:
            # The operator's settings and gates know skills by name: nobody else takes that name.
            skills[name] = own.skills[name]
            refused.pop(name, None)
        for name in own.refused:
            skills.pop(name, None)
        if self._projects.get(project_id) is project:
            self._ask(project, project_id, skills)
        return FoundSkills(skills, refused)

    async def _look_own(self) -> FoundSkills:
        async with self._own.lock:
            found = await asyncio.to_thread(self._own.library.look)
        self._last = found
        self.operator_metadata.clear()
        self.operator_metadata.update(
            {name: one.file.metadata for name, one in found.skills.items()}
        )
        for one in found.skills.values():
            self._consents.update(one, "")
        gone = self._own.asked - found.skills.keys()
        for name in gone:
            self._consents.forget(name, SkillSource.OPERATOR.value)
        self._own.asked = frozenset(found.skills)
        return found

    def _ask(self, project: _ProjectSkills, project_id: str, skills: dict[str, Skill]) -> None:
        own = {name: one for name, one in skills.items() if one.source is SkillSource.PROJECT}
        for one in own.values():
            self._consents.update(one, project_id)
        for name in project.asked - own.keys():
            self._consents.forget(name, project_id)
        project.asked = frozenset(own)

    def _usable(self, found: FoundSkills, project_id: str, actor: Actor | None) -> Sequence[Skill]:
        return [
            found.skills[name]
            for name in sorted(found.skills)
            if self._consents.agreed(found.skills[name], project_id)
            and self._denial(found.skills[name], actor) is None
        ]

    def _denial(self, skill: Skill, actor: Actor | None) -> str | None:
        policy = policy_of_skill(skill.file.metadata, self._settings())
        chat_type, chat = (None, None) if actor is None else (actor.chat_type, actor.chat)
        decision = decide_skill_use(policy, chat_type, chat)
        return None if decision.allowed else describe_denial(decision).words

    def _not_found(
        self, found: FoundSkills, name: str, project_id: str, actor: Actor | None
    ) -> KagedError:
        refused = found.refused.get(name)
        if refused is not None:
            return SkillNotFound(
                f"The skill {name} cannot be used: {refused.reason}.",
                fix="Correct its file; `kaged skill check` says more.",
                skill=name,
            )
        usable = self._usable(found, project_id, actor)
        listed = ", ".join(one.name for one in usable[:_NAMED]) or "none"
        return SkillNotFound(
            f"There is no skill {name[:80]!r}.", fix=f"The skills are: {listed}.", skill=name[:80]
        )

    def _view(self, skill: Skill, project_id: str) -> JsonObject:
        agreed = self._consents.agreed(skill, project_id)
        enabled = policy_of_skill(skill.file.metadata, self._settings()).enabled
        state = "ready" if agreed and enabled else "off" if not enabled else "waiting"
        return {**skill.as_json(), "state": state}

    def _project(self, project_id: str) -> _ProjectSkills:
        project = self._projects.get(project_id)
        if project is None:
            raise no_usable_project(project_id)
        return project
