"""`ToolsSection`: what the operator says about tools, whichever project uses them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from kaged.config.containers import ListOf
from kaged.config.records import key, record, section, strict
from kaged.config.shapes import Choice, Flag, Number, TextShape, Whole
from kaged.config.toolrules import NAME_PATTERN
from kaged.kernel.protected_paths import MAX_ALLOWED

MAX_QUOTAS: Final = 200
MAX_CALLS: Final = 1_000_000


class OutsideHitsWord(StrEnum):
    """What a caged agent's searches tell about files outside its cage."""

    MARK = "mark"
    OMIT = "omit"


class SealWord(StrEnum):
    """Whose tools may not change a project's `.kaged`: those of caged agents, of all, of nobody."""

    CAGED = "caged"
    ALL = "all"
    OFF = "off"


class ReviewWord(StrEnum):
    """Whether agents may change what a person reviews before it is trusted, such as a Makefile."""

    ALLOW = "allow"
    REFUSE = "refuse"


class QuotaSpan(StrEnum):
    """Over what calls are counted: a run, a session, or an agent's last minute."""

    RUN = "run"
    SESSION = "session"
    MINUTE = "minute"


@record
class QuotaEntry:
    """A limit on how often an agent may call some tools."""

    tools: str = key(
        TextShape(max_chars=200, pattern=NAME_PATTERN, means="a tool name or glob"),
        "The tools it counts, as a name or glob such as `shell.*`.",
    )
    calls: int = key(Whole(1, MAX_CALLS), "How many calls are allowed.")
    per: QuotaSpan = key(Choice(QuotaSpan), "In what: a run, a session, or a minute.")


class ShellWord(StrEnum):
    """A further tool that runs programs, beside `shell.bash`."""

    PYTHON = "python"
    NODE = "node"


@record
class AllowedPath:
    """A protected path that agents may change in one project."""

    project: str = key(
        TextShape(max_chars=4096, pattern=r"/.*", means="an absolute path"),
        "The project's folder, as an absolute path with every link followed.",
    )
    path: str = key(
        TextShape(max_chars=1024, pattern=r"[^/].*", means="a path in the project"),
        "The path in it, such as `.husky`, with everything below.",
    )


@record
class ToolLimits:
    """How long single tools may take, and how much they may say."""

    search_seconds: float = key(
        Number(1, 600), "How long one search or `edit.ast` may take.", default=60
    )
    search_output_kb: int = key(
        Whole(16, 4096), "How many KiB of matches one search returns.", default=256
    )
    glob_files: int = key(Whole(1, 10_000), "How many files `search.glob` returns.", default=100)
    shell_seconds: float = key(
        Number(1, 24 * 3600), "The longest time that a command can ask for.", default=600
    )
    shell_output_kb: int = key(
        Whole(64, 16 * 1024), "How many KiB of a command's output are returned.", default=1024
    )
    background_seconds: float = key(
        Number(1, 7 * 24 * 3600), "How long a command in the background may run.", default=28800
    )
    file_wait_seconds: float = key(
        Number(0.1, 120),
        "How long a call waits for a file that another one works on.",
        default=5,
    )
    web_seconds: float = key(
        Number(1, 120), "How long `web.fetch` waits for a page, redirects included.", default=30
    )


@record
class ToolsSection:
    """The tools of all agents. Taken up when the daemon starts."""

    ask_seconds: float = key(
        Number(1, 24 * 3600),
        "How long a refused call of an agent with `on_denied: ask` waits for a person.",
        default=600,
    )
    quotas: tuple[QuotaEntry, ...] = key(
        ListOf(strict(QuotaEntry), max_items=MAX_QUOTAS),
        "Limits on how often each agent may call tools; without any, nothing is counted.",
        default=(),
    )
    limits: ToolLimits = section("Limits of single tools.", factory=ToolLimits)
    shells: tuple[ShellWord, ...] = key(
        ListOf(Choice(ShellWord), unique=True),
        "Further tools that run programs: `python` is `shell.python`, `node` is `shell.node`. "
        "They need what `shell.bash` needs, and agents enable them like other tools.",
        default=(),
    )
    scrub_env: tuple[str, ...] = key(
        ListOf(TextShape(max_chars=128, pattern=r"[A-Za-z0-9_*?]+", means="a name or glob")),
        "Variables of the daemon that commands and debuggers of agents without a cage, and "
        "language servers, do not see, as names or globs such as `*_TOKEN`. Caged ones see none of "
        "them anyway.",
        default=(),
    )
    outside_hits: OutsideHitsWord = key(
        Choice(OutsideHitsWord),
        "What searches show a caged agent of files outside its cage: `mark` shows path and "
        "line, `omit` nothing.",
        default=OutsideHitsWord.MARK,
    )
    diagnose_edits: bool = key(
        Flag(),
        "Put new errors of changed files into the results of `file.write`, `file.create`, "
        "`edit.text` and `edit.ast`, where a language server runs already; waits two seconds at "
        "most.",
        default=False,
    )
    refuse_hard_links: bool = key(
        Flag(),
        "Refuse tools of caged agents every file that has a further name (a hard link), and what "
        "is mounted into a granted folder: both may be something outside the cage.",
        default=False,
    )
    protect_kaged: SealWord = key(
        Choice(SealWord),
        "Whose tools cannot change a project's `.kaged`, where cages are defined: `caged` is every "
        "agent with a cage whose `fs` does not name `.kaged` itself, `all` is every agent, `off` "
        "no agent.",
        default=SealWord.CAGED,
    )
    allow_protected: tuple[AllowedPath, ...] = key(
        ListOf(strict(AllowedPath), max_items=MAX_ALLOWED),
        "Protected paths that agents, plugins and MCP servers may change all the same; "
        "`kaged cage explain` shows each with the digest of what lies there.",
        default=(),
    )
    reviewed_files: ReviewWord = key(
        Choice(ReviewWord),
        "What happens to files that a person reviews before they are trusted, such as a "
        "`Makefile` or `.github/workflows`: `allow` names each change in the audit log and the "
        "run's summary, `refuse` protects them like hooks.",
        default=ReviewWord.ALLOW,
    )
