"""What the API takes and gives, as the OpenAPI document shows it."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from kaged.audit import VerifyReport

T = TypeVar("T")


class ApiModel(BaseModel):
    """Base of all of them: closed, so that a misspelt field is an error and not silence.

    What writes a model out is built when it is first needed: at a start, few of the hundred are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def of(cls, record: object, **made: object) -> Self:
        """Show a record: its attributes by the names of the fields, and `made` for the rest."""
        same = {name: getattr(record, name) for name in cls.model_fields if name not in made}
        return cls.model_validate({**same, **made})


class RequestBody(ApiModel):
    """What a request brings.

    Built at once: FastAPI reads bodies with it, and pydantic warns of what it finds unfinished.
    """

    model_config = ConfigDict(defer_build=False)


class ErrorDetail(ApiModel):
    """What went wrong."""

    code: Annotated[str, Field(description="Stable name of the error; match on this.")]
    message: Annotated[str, Field(description="The same for people; may change.")]
    data: Annotated[
        dict[str, Any], Field(description="Facts about it; `fix` says what to do about it.")
    ]
    request_id: Annotated[str | None, Field(description="Where to look in log and audit trail.")]


class ErrorOut(ApiModel):
    """The one shape of every answer that is no success."""

    error: ErrorDetail


class PageOut(ApiModel, Generic[T]):
    """One page of a list."""

    items: list[T]
    next_cursor: Annotated[
        str | None, Field(description="Pass as `cursor` for the next page; null on the last.")
    ]


class IndexOut(ApiModel):
    """What this is and where to go on."""

    name: Literal["kaged"]
    version: str
    openapi: str
    status: str
    events: str


class HealthOut(ApiModel):
    """Whether the daemon can do its work."""

    status: Annotated[
        Literal["ok", "degraded", "stopping"],
        Field(description="`degraded`: reads work, changes are refused."),
    ]


class LaunchOut(ApiModel):
    """A link that opens one browser session."""

    url: str
    expires_in_s: float


class WhoamiOut(ApiModel):
    """Who the daemon takes you for."""

    operator_id: Annotated[
        str | None, Field(description="Null in insecure mode, where no caller is authenticated.")
    ]
    via: Annotated[
        str,
        Field(
            description="What vouched for you: unix, bearer, cookie, sign_in, access_token, "
            "insecure."
        ),
    ]
    operator: Annotated[bool, Field(description="Whether you are the operator, or a person.")]
    roles: list[str]
    teams: list[str]
    leads: Annotated[list[str], Field(description="The teams into which you may invite people.")]


class TokenRotatedOut(ApiModel):
    """The bearer token was replaced."""

    token_file: Annotated[str, Field(description="Where the new one is; it is not sent.")]


class AuditHealthOut(ApiModel):
    """Whether the audit trail can be written; while it cannot, changes are refused."""

    ok: bool
    last_error: str | None
    queued: int
    written: int
    head_seq: Annotated[int, Field(description="Number of the newest row of the chain.")]


class StatusOut(ApiModel):
    """Which daemon this is, and its status."""

    version: str
    pid: int
    home: str
    socket: str
    url: Annotated[str | None, Field(description="Where TCP is served; null when it is not.")]
    auth_mode: Literal["secure", "insecure"]
    started_at: str
    uptime_s: float
    epoch: Annotated[str, Field(description="Names this run; event numbers belong to it.")]
    projects: Annotated[int, Field(description="How many projects are loaded.")]
    event_clients: int
    audit: AuditHealthOut
    limits: Annotated[str, Field(description="How cages are limited, and what is weaker here.")]
    opening: Annotated[
        list[str],
        Field(description="Projects whose guards are not all in force, with those missing."),
    ]
    warnings: Annotated[list[str], Field(description="What a person should know about.")]


class DoctorRowOut(ApiModel):
    """One thing that was checked."""

    id: str
    status: Literal["ok", "warn", "fail"]
    what: Annotated[str, Field(description="What this protects, or what needs it.")]
    cause: Annotated[str, Field(description="What was found.")]
    fix: Annotated[str, Field(description="What to do; empty when all is well.")]


class DoctorOut(ApiModel):
    """Everything that was checked."""

    rows: list[DoctorRowOut]


class AuditRowOut(ApiModel):
    """One row of the audit trail."""

    seq: int
    id: str
    timestamp: str
    event: str
    project_id: str | None
    request_id: str | None
    data: dict[str, Any]
    prev_hash: str
    hash: str


class FindingOut(ApiModel):
    """One thing wrong with the chain."""

    seq: int
    kind: str
    detail: str


class VerifyOut(ApiModel):
    """What a check of the whole chain found."""

    ok: bool
    rows: int
    head_seq: int
    head_hash: str
    findings: list[FindingOut]
    findings_total: int
    anchors: Annotated[list[str], Field(description="Which anchors were there and agreed.")]

    @classmethod
    def of_report(cls, report: VerifyReport) -> Self:
        """Show what a check found."""
        return cls.of(
            report,
            head_seq=report.head.seq,
            head_hash=report.head.hash,
            findings=[FindingOut.of(found) for found in report.findings],
            findings_total=report.total,
        )


AskDigest = Annotated[str | None, Field(pattern="^[0-9a-f]{64}$")]


class ReloadProjectIn(RequestBody):
    """Whether a project is trusted together with reading its files."""

    trust: Annotated[
        bool, Field(description="Agree to whatever its files ask for, without having seen it.")
    ] = False
    digest: Annotated[
        AskDigest, Field(description="Agree to what its files ask for if that has this digest.")
    ] = None


class LoadProjectIn(ReloadProjectIn):
    """Which project to load."""

    root: Annotated[
        str, Field(min_length=1, max_length=4096, description="Absolute path of its folder.")
    ]


class TrustIn(RequestBody):
    """Whether the operator agrees to what a project's files ask for."""

    trusted: bool
    digest: Annotated[
        AskDigest,
        Field(description="What was shown: another one is refused. Left out: whatever it asks."),
    ] = None


class ProblemOut(ApiModel):
    """Something noticed while reading a project's files."""

    file: str
    line: int | None
    column: int | None
    key_path: str
    message: str
    fix: str
    severity: str
    code: str


class ReadinessOut(ApiModel):
    """Whether everything that guards a project is in force."""

    model_config = ConfigDict(from_attributes=True)

    state: Annotated[
        Literal["opening", "open", "failed"],
        Field(
            description="`opening`: runs, moves and calls wait; `failed`: they are refused until "
            "what is missing is loaded."
        ),
    ]
    missing: Annotated[list[str], Field(description="The guards that are not in force.")]


class ProjectOut(ApiModel):
    """One project that the daemon knows."""

    id: str
    slug: str
    name: str
    root: Annotated[str | None, Field(description="Its folder on the machine; null for people.")]
    trusted: Annotated[
        bool,
        Field(
            description="Whether what the project's files say is in force; otherwise its agents "
            "are restricted to reading."
        ),
    ]
    state: Annotated[
        Literal["loaded", "pending", "failed"],
        Field(
            description="`pending`: it lacks plugins, see the consents; "
            "`failed`: its files have errors."
        ),
    ]
    loaded_at: str
    agents: Annotated[int, Field(description="How many agents its tree has.")]
    problems: list[ProblemOut]
    readiness: ReadinessOut


class ProjectDetailOut(ProjectOut):
    """One project with its agents, as they were resolved."""

    tree: Annotated[
        dict[str, Any] | None,
        Field(
            description="The agent tree: model, cage, tools, plugins, and where each came from. "
            "For people only the agents' paths and descriptions."
        ),
    ]
    ask: Annotated[
        dict[str, Any] | None,
        Field(
            description="What its files ask for, with `digest`, `things` (`key`, `words`, `new`, "
            "`dangerous`, `warning`), the same in `lines`, and what was agreed to before. "
            "Null for people."
        ),
    ]
