"""`ConsentRequest`: one question about a plugin, its words in the inbox, and an answer to it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.inbox import NO, YES, InboxRequest, RequestDraft, RequestKind
from kaged.kernel.describe import consent_question
from kaged.plugins.prompt import SOURCE_NOT_SPECIFIED, InstallPrompt


class ConsentStep(StrEnum):
    """What a yes allows."""

    FETCH = "fetch"
    INSTALL = "install"
    PATH = "path"
    USE = "use"


@dataclass(frozen=True, slots=True)
class ConsentRequest:
    """One question to the operator; `prompt` is there once the manifest can be read."""

    id: str
    project_id: str
    project_root: Path
    plugin: str
    package: str
    source: str
    version: str | None
    step: ConsentStep
    prompt: InstallPrompt | None = None
    declined: bool = False
    problem: str = ""

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities, empty as long as they are not known."""
        return () if self.prompt is None else tuple(c.text for c in self.prompt.capabilities)

    @property
    def question(self) -> str:
        """The question in words; the default is no."""
        if self.step is ConsentStep.INSTALL and self.prompt is not None:
            return self.prompt.question
        source = SOURCE_NOT_SPECIFIED if self.step is ConsentStep.PATH else self.source
        return consent_question(self.step, self.plugin, source=source)

    def as_json(self) -> JsonObject:
        """Return the request for HTTP answers and for the inbox."""
        capabilities: list[JsonValue] = list(self.capabilities)
        return {
            "id": self.id,
            "project_id": self.project_id,
            "project_root": str(self.project_root),
            "name": self.plugin,
            "package": self.package,
            "source": self.source,
            "version": self.version,
            "step": self.step.value,
            "capabilities": capabilities,
            "prompt": None if self.prompt is None else self.prompt.as_json(),
            "declined": self.declined,
            "problem": self.problem,
            "question": self.question,
        }


@dataclass(frozen=True, slots=True)
class ConsentAnswer:
    """What the operator said; `digest` is that of the prompt that was shown."""

    allowed: bool
    digest: str | None = None
    path: Path | None = None


def consent_draft(request: ConsentRequest) -> RequestDraft:
    """Return a question as a request of the inbox."""
    shown = request.as_json()
    shown["declined"] = False  # asked again, it is what it was
    prompt = request.prompt
    details = [f"Plugin: {request.plugin}", f"Source: {request.source}"]
    if prompt is not None:
        details += [f"Version: {prompt.version}", f"Files: {prompt.digest}"]
        details += [
            f"{one.text}: {one.sentence.words} {one.sentence.warning}".strip()
            for one in prompt.capabilities
        ]
    if request.problem:
        details.append(request.problem)
    needs_path = request.step is ConsentStep.PATH
    use = request.step is ConsentStep.USE
    return RequestDraft(
        request.id,
        RequestKind.PROJECT_CONSENT if use else RequestKind.PLUGIN_CONSENT,
        request.question.removesuffix(" [y/N]"),
        details,
        choices=() if needs_path else (YES, NO),
        answer_schema=_PATH_ANSWER if needs_path else None,
        subject=shown,
        project_id=request.project_id,
    )


_PATH_ANSWER: Final[JsonObject] = {
    "type": "object",
    "required": ["choice"],
    "properties": {"choice": {"enum": [YES, NO]}, "path": {"type": "string", "pattern": "^/"}},
}


def parse_consent(request: InboxRequest, answer: dict[str, Any]) -> ConsentAnswer:
    """Read an answer of the inbox, which is to exactly the files that were shown."""
    choice, path = answer.get("choice"), answer.get("path")
    if choice not in {YES, NO} or not (
        path is None or (isinstance(path, str) and path.startswith("/"))
    ):
        raise KagedError(
            "The answer is neither yes nor no, or its path is not absolute.",
            code="inbox_answer_invalid",
            fix='Answer with {"choice": "yes"} or {"choice": "no"}, and "path" if it is asked for.',
            id=request.id,
        )
    prompt = cast("dict[str, Any] | None", request.subject["prompt"])
    digest = None if prompt is None else str(prompt["digest"])
    return ConsentAnswer(choice == YES, digest, None if path is None else Path(path))
