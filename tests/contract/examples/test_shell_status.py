"""The shell plugin: the wire protocol alone, no SDK."""

from __future__ import annotations

from fakes.example_plugins import EXAMPLES
from fakes.plugin_talk import PluginTalk
from requirements import requirement


@requirement("PH-WIRE-02")
async def test_a_shell_plugin_speaks_the_protocol() -> None:
    script = EXAMPLES / "shell-status" / "main.sh"
    async with PluginTalk(["bash", script], name="shell-status") as talk:
        answer = await talk.greet()
        assert answer["result"]["name"] == "shell-status"
        talk.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
        assert (await talk.request(2, "ping"))["result"] == {"status": "ok"}
        status = (await talk.request(3, "status.get"))["result"]
        assert set(status) == {"load", "available_memory_kib", "free_scratch_kib"}
        text = 'quotes " and $(touch x) and \\ and ü'
        echo = await talk.request(4, "status.echo", {"text": text, "_context": {}})
        assert echo["result"] == {"text": text}
        assert await talk.error_code(5, "no.such") == -32601
        talk.send({"jsonrpc": "2.0", "method": "no.such.notification"})
        talk.send_bytes(b"not json\n")
        assert (await talk.request(6, "ping"))["id"] == 6
        talk.send({"jsonrpc": "2.0", "method": "shutdown"})
        assert await talk.exit_code() == 0
