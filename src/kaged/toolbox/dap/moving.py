"""Moving on: steps, continue, pause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kaged.base import JsonValue
from kaged.toolbox.dap.state import State
from kaged.toolbox.dap.view import View

if TYPE_CHECKING:
    from kaged.toolbox.dap.bridge import DapBridge
    from kaged.tools.call import ToolInvocation

_COMMANDS: Final = {
    "step_into": "stepIn",
    "step_over": "next",
    "step_out": "stepOut",
    "continue": "continue",
}


async def move(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Step or continue, and describe where the program stopped next, or how it ended."""
    session = bridge.session(call)
    view = View(call, bridge, session)
    action = str(call.args["action"])
    if session.state is State.STOPPED:
        thread = await view.thread_id(call.args.get("thread_id"))
        await session.resume(_COMMANDS[action], thread, bridge.wait_s)
    elif session.state is State.RUNNING:
        # An earlier call gave up waiting; this one picks the state up again.
        if action != "continue":
            session.require_stopped()
        await session.settled(bridge.wait_s)
    return await view.state()


async def pause(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Interrupt the program."""
    session = bridge.session(call)
    view = View(call, bridge, session)
    if session.state is State.RUNNING:
        thread = await view.thread_id(call.args.get("thread_id"))
        await session.ask("pause", {"threadId": thread})
        await session.settled(bridge.wait_s)
    return await view.state()
