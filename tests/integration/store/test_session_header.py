"""A session that is known before anything was said in it gets its header, and goes on."""

from __future__ import annotations

from fakes.store_home import StoreHome
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.lifecycle import Lifecycle
from kaged.sessions.transcript import Transcript


async def test_a_session_without_a_header_gets_it_and_goes_on(home: StoreHome) -> None:
    store = await home.store()
    known = await store.sessions.ensure("ses_old", "prj_1")
    await home.close()
    store = await home.store()
    found = await store.sessions.get("prj_1", "ses_old")
    assert (found.created_at_ms, found.head_entry, found.entry_count) == (
        known.created_at_ms,
        None,
        0,
    )
    transcript = Transcript(store, Lifecycle(), clock=home.clock, ids=home.ids)
    assert await transcript.entries("ses_old") == []
    await transcript.create("prj_1", cwd="/", model=None, session_id="ses_old")
    draft = EntryDraft(EntryKind.MESSAGE, {"content": "hello"}, role=EntryRole.USER)
    await transcript.append("ses_old", [draft])
    assert [one.kind.value for one in await transcript.entries("ses_old")] == ["header", "message"]
