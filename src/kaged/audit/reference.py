"""`render_reference`: the reference page of all events, made from their declarations."""

from __future__ import annotations

import sys

from kaged.audit.events import CHAPTERS, COMMON_FIELDS, EventType, Field, FieldKind

_INTRO = """\
# Audit events

Every event that kaged writes to its audit log, with its fields. This page is made from the
declarations in `kaged.audit.events`; a test fails when they differ.

Each entry has `seq` (the order of the log), `id`, `timestamp` (ISO 8601, UTC), `event` (the
name), `project_id`, `request_id` (when a call caused it), `data` (the fields below), `prev_hash`
and `hash`.

A field in *italics* is optional, a `?` marks one that may be null. An event marked **gates** is on
disk before the action it stands for goes on; when the log cannot be written, that action is
refused. Kinds: `cut` is text of which the first 200 characters are kept, `sql` is a statement
without its literals, `tail` is the last 50 lines of an output, `any` is any JSON value.

Before an event is written, text over 1000 characters (200 for file contents, messages and the
like) is replaced by its length and SHA-256, values of environment variables and of keys such as
`password` or `api_key` are taken out, and so is what has the shape of a token or private key.
"""


def render_reference() -> str:
    """Write the page `docs/reference/audit-events.md`."""
    common = ", ".join(_field(one) for one in COMMON_FIELDS)
    parts = [_INTRO, f"Every event may carry these beside its own: {common}.\n"]
    for chapter in CHAPTERS:
        parts.append(f"## {chapter.title}\n")
        parts.append("| Event | Written when | Data |")
        parts.append("|---|---|---|")
        parts.extend(_row(one) for one in chapter.events)
        parts.append("")
    return "\n".join(parts)


def _row(event: EventType) -> str:
    gates = " **gates**" if event.gates else ""
    data = ", ".join(_field(one) for one in event.fields) or "none"
    return f"| `{event.name}`{gates} | {event.doc} | {data} |"


def _field(field: Field) -> str:
    name = f"`{field.name}`" if field.required else f"*`{field.name}`*"
    kind = "" if field.kind is FieldKind.TEXT else f" {field.kind.value}"
    return f"{name}{kind}{'?' if field.nullable else ''}"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
