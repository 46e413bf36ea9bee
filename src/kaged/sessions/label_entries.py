"""The labels of a session's data, as entries of the session: forks, exports and restarts keep them.

Compactions do not remove them: what a summary says comes from what it replaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kaged.audit import AuditEvent
from kaged.sessions.content import decode_content
from kaged.sessions.entry import EntryDraft, EntryKind
from kaged.store.session_rows import SessionNotFound
from kaged.tools.session_labels import NewLabels, SessionLabels

if TYPE_CHECKING:
    from kaged.audit import AuditLog
    from kaged.base import JsonObject, JsonValue
    from kaged.sessions.transcript import Transcript
    from kaged.store import Store
    from kaged.store.entry_rows import EntryRow

LABELS_KIND: Final = "kaged.labels"


def open_labels(store: Store, transcript: Transcript, audit: AuditLog) -> SessionLabels:
    """Return the labels of all sessions of a store."""

    async def load(session_id: str) -> frozenset[str]:
        try:
            found = await store.entries.of_kind(session_id, EntryKind.CUSTOM.value, _labels)
        except SessionNotFound:
            return frozenset()  # no data in it yet; adding some will say what is wrong
        return frozenset().union(*found)

    async def keep(new: NewLabels) -> None:
        labels: list[JsonValue] = [*new.labels]
        draft = EntryDraft(
            kind=EntryKind.CUSTOM,
            content={"kind": LABELS_KIND, "data": {"labels": labels, "source": new.source}},
            run_id=new.run_id,
        )
        project_id = await transcript.project_of(new.session_id)
        data: JsonObject = {"session_id": new.session_id, "labels": labels, "source": new.source}
        audit.post(AuditEvent("session.labelled", data, project_id=project_id))
        await transcript.append(new.session_id, [draft])

    return SessionLabels(load, keep)


def _labels(row: EntryRow, _: str | None) -> frozenset[str]:
    content = decode_content(row.content)
    data = content.get("data") if content.get("kind") == LABELS_KIND else None
    labels = data.get("labels") if isinstance(data, dict) else None
    return frozenset(map(str, labels)) if isinstance(labels, list) else frozenset()
