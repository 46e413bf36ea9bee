"""The command line of `ash-sb`: one table of commands, a small parser, and their help.

argparse alone would double the start-up time.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "ash-sb"

Given = dict[str, str]
"""Options by their long name without dashes; a flag that was given has the text `yes`."""


class UsageError(Exception):
    """The command line makes no sense; `shown` is the help that goes with it."""

    def __init__(self, message: str, shown: str) -> None:
        super().__init__(message)
        self.message = message
        self.shown = shown


class HelpAsked(Exception):
    """`--help` was given; `shown` is the answer."""

    def __init__(self, shown: str) -> None:
        super().__init__(shown)
        self.shown = shown


class Option:
    """One option of a command; without `value` it is a flag."""

    __slots__ = ("help", "name", "required", "short", "value")

    def __init__(
        self, name: str, value: str, help_: str, *, short: str = "", required: bool = False
    ) -> None:
        self.name = name
        self.value = value
        self.help = help_
        self.short = short
        self.required = required

    def row(self) -> tuple[str, str]:
        """Return what the help says: how it is written, and what it means."""
        short = f", -{self.short}" if self.short else ""
        left = f"--{self.name} {self.value}".rstrip() + short
        return left, self.help + (" Required." if self.required else "")


class CliCommand:
    """One command: its words, what it does, its options."""

    __slots__ = ("help", "options", "words")

    def __init__(self, words: str, help_: str, *options: Option) -> None:
        self.words = words
        self.help = help_
        self.options = (*options, _JSON)

    def usage(self) -> str:
        """Return the help text of this command."""
        rows = [one.row() for one in self.options]
        width = max(len(left) for left, _ in rows)
        lines = [f"Usage: {PROGRAM} {self.words} [OPTIONS]", "", f"  {self.help}", "", "Options:"]
        lines += [f"  {left.ljust(width)}  {right}".rstrip() for left, right in rows]
        return "\n".join(lines) + "\n"


_JSON = Option("json", "", "Print the raw result; a failure is one JSON object on stderr.")


def _capability(*, required: bool = True) -> Option:
    return Option(
        "capability", "ID", "Full capability id, e.g. gog.email.", short="c", required=required
    )


def _account(help_: str, *, required: bool = False) -> Option:
    return Option("account", "NAME", help_, required=required)


_CALLBACK = Option("callback-url", "URL", "The whole URL the browser was sent back to.")
_CODE = Option("code", "CODE", "The code that the page showed.")
_FLOW = Option("flow-id", "ID", "The flow, as `auth begin` printed it.", required=True)

COMMANDS = (
    CliCommand(
        "capability list",
        "List the capabilities that can be used from this chat.",
        Option("all", "", "Also list those that cannot be used here."),
    ),
    CliCommand(
        "capability describe",
        "Describe the operations: their input as a JSON Schema, and an example of each.",
        _capability(required=False),
        Option("operation", "NAME", "Only this operation.", short="o"),
    ),
    CliCommand(
        "capability invoke",
        "Run one operation of a capability.",
        _capability(),
        Option("operation", "NAME", "Operation of the capability.", short="o", required=True),
        Option("input-json", "JSON", "Input object; - reads it from standard input."),
        Option("idempotency-key", "KEY", "Repeats with this key have one effect."),
        _account("Which linked account, when there are several."),
        Option("plan-id", "ID", "The confirmed plan that this call carries out."),
        Option("target-fingerprint", "TEXT", "Fingerprint of what the plan is about."),
    ),
    CliCommand(
        "capability auth begin",
        "Start linking an account; prints the URL that the user must open.",
        _capability(),
        _account("A name for the account, e.g. work."),
    ),
    CliCommand(
        "capability auth list",
        "List the flows that wait for the user.",
        _capability(required=False),
        _account("Only flows for this account name."),
    ),
    CliCommand(
        "capability auth complete",
        "Finish a flow with the URL or the code that the user came back with.",
        _FLOW,
        _CALLBACK,
        _CODE,
    ),
    CliCommand(
        "capability auth complete-callback",
        "Finish the flow that a callback URL or a code belongs to.",
        _CALLBACK,
        _CODE,
        _capability(required=False),
        _account("Only flows for this account name."),
    ),
    CliCommand(
        "capability auth poll",
        "Ask whether the user has agreed on their other device.",
        _FLOW,
        Option("timeout", "SECONDS", "Keep asking for so long."),
        Option("interval", "SECONDS", "How long to wait between questions."),
    ),
    CliCommand("capability auth cancel", "Give a flow up, so that a new one can begin.", _FLOW),
    CliCommand(
        "capability auth revoke",
        "Unlink an account.",
        _capability(),
        _account("The account_ref to unlink.", required=True),
    ),
)


def parse(argv: Sequence[str]) -> tuple[str, Given]:
    """Find the command and its options.

    Raises:
        UsageError: unknown words or options, a value is missing, or only a group was named.
        HelpAsked: `--help` stands somewhere among the words or options.
    """
    words: list[str] = []
    rest = list(argv)
    while rest and not rest[0].startswith("-"):
        words.append(rest.pop(0))
        command = _BY_WORDS.get(" ".join(words))
        if command is not None:
            return command.words, _options(command, rest)
    group = " ".join(words)
    if not _below(group):
        raise UsageError(f"No such command '{group}'.", group_help(""))
    if "--help" in rest:
        raise HelpAsked(group_help(group))
    if rest:
        raise UsageError(f"No such option: {rest[0]}", group_help(group))
    raise UsageError("", group_help(group))


def group_help(group: str) -> str:
    """Return the help of a group of commands; the empty text is the program itself."""
    rows = [(one.words, one.help) for one in _below(group)]
    width = max(len(left) for left, _ in rows)
    head = f"{PROGRAM} {group}".rstrip()
    lines = [f"Usage: {head} COMMAND [OPTIONS]", ""]
    lines += ["  Use people's accounts through the host, which holds the credentials.", ""]
    lines += ["Commands:", *(f"  {left.ljust(width)}  {right}" for left, right in rows)]
    return "\n".join(lines) + "\n"


def _below(group: str) -> list[CliCommand]:
    return [one for one in COMMANDS if not group or one.words.startswith(f"{group} ")]


def _options(command: CliCommand, rest: list[str]) -> Given:
    given: Given = {}
    known = {f"--{one.name}": one for one in command.options}
    known |= {f"-{one.short}": one for one in command.options if one.short}
    while rest:
        word = rest.pop(0)
        if word == "--help":
            raise HelpAsked(command.usage())
        name, value = _split(word)
        option = known.get(name)
        if option is None:
            raise UsageError(f"No such option: {name}", command.usage())
        if not option.value:
            if value is not None:
                raise UsageError(f"Option '{name}' does not take a value.", command.usage())
            given[option.name] = "yes"
            continue
        if value is None:
            if not rest:
                raise UsageError(f"Option '{name}' requires a value.", command.usage())
            value = rest.pop(0)
        given[option.name] = value
    for option in command.options:
        if option.required and option.name not in given:
            raise UsageError(f"Missing option '--{option.name}'.", command.usage())
    return given


def _split(word: str) -> tuple[str, str | None]:
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    # -cgog.email is -c gog.email; a lone dash and plain words are no options at all.
    return word[:2], word[2:] or None


_BY_WORDS = {one.words: one for one in COMMANDS}
