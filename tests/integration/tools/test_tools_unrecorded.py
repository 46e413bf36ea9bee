"""Real file tools over an audit log whose disk is full."""

from __future__ import annotations

from pathlib import Path

from fakes.audit_sink import MemorySink
from fakes.tool_lab import ToolLab, until_health
from kaged.audit import AuditLog, ChainKey
from kaged.base import Ids, SystemClock
from kaged.toolbox.files import file_tools
from requirements import requirement


@requirement("AT-REG-27")
async def test_file_tools_need_no_plugin_host(tmp_path: Path) -> None:
    lab = ToolLab(tmp_path, file_tools())
    await lab.call("file.create", path="a.txt", content="one\n")
    await lab.call("file.read", path="a.txt")
    await lab.call("edit.text", path="a.txt", old_string="one", new_string="two")
    assert "two" in (await lab.call("file.read", path="a.txt"))["content"]
    assert not any(name.startswith("plugin.") for name in lab.audit.names())


@requirement("AT-AUD-29")
async def test_reads_go_on_and_writes_stop_while_nothing_can_be_recorded(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("before\n", encoding="utf-8")
    sink, clock = MemorySink(), SystemClock()
    log = await AuditLog.open(sink, clock=clock, ids=Ids(clock), key=ChainKey(b"k" * 32))
    lab = ToolLab(tmp_path, file_tools(), log=log)
    try:
        await lab.call("file.read", path="a.txt")
        await log.flush()
        sink.fail_with = OSError(28, "No space left on device")
        assert "before" in (await lab.call("file.read", path="a.txt"))["content"]
        await until_health(log, ok=False)
        error = await lab.refusal("file.write", path="a.txt", content="after\n")
        assert error.code == "audit_unavailable"
        assert "audit log" in error.message
        assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "before\n"
        edit = {"path": "a.txt", "old_string": "before", "new_string": "after"}
        assert (await lab.refusal_with("edit.text", edit)).code == "audit_unavailable"
        assert (await lab.refusal("file.create", path="new", content="")).code == (
            "audit_unavailable"
        )
        assert sorted(one.name for one in tmp_path.iterdir()) == ["a.txt"]
        assert not log.health.ok
        assert "No space" in (log.health.last_error or "")
        sink.fail_with = None
        await until_health(log, ok=True)
        await lab.call("file.write", path="a.txt", content="after\n")
        assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "after\n"
    finally:
        sink.fail_with = None
        await log.close()
    # A log that fails only once the work is done takes nothing back.
    lab = ToolLab(tmp_path, file_tools())
    lab.audit.down_for = {"tool.completed", "file.written"}
    await lab.call("file.read", path="a.txt")
    result = await lab.call("file.write", path="a.txt", content="last\n")
    assert result["path"] == "./a.txt"
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "last\n"
