"""A database from before sessions had entries keeps what it has, and its sessions go on."""

from __future__ import annotations

from fakes.store_home import StoreHome
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.lifecycle import Lifecycle
from kaged.sessions.transcript import Transcript
from kaged.store import MIGRATIONS

OLD = MIGRATIONS[:3]


async def test_sessions_from_before_the_book_get_their_header_and_go_on(home: StoreHome) -> None:
    old = await home.store(OLD)
    await old.write(
        lambda conn: conn.exec_driver_sql(
            "INSERT INTO sessions (id, project_id, kind, status, created_at_ms, updated_at_ms) "
            "VALUES ('ses_old', 'prj_1', 'primary', 'idle', 5, 6)"
        )
    )
    await home.close()
    store = await home.store()
    assert store.migrated is not None
    assert store.migrated.from_version == 3
    assert store.migrated.backup is not None
    found = await store.sessions.get("prj_1", "ses_old")
    assert (found.created_at_ms, found.head_entry, found.entry_count) == (5, None, 0)
    transcript = Transcript(store, Lifecycle(), clock=home.clock, ids=home.ids)
    assert await transcript.entries("ses_old") == []
    await transcript.create("prj_1", cwd="/", model=None, session_id="ses_old")
    draft = EntryDraft(EntryKind.MESSAGE, {"content": "hello"}, role=EntryRole.USER)
    await transcript.append("ses_old", [draft])
    assert [one.kind.value for one in await transcript.entries("ses_old")] == ["header", "message"]
