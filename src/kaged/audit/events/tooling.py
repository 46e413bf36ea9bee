"""Events of the dispatcher, the built-in tools and the sessions that use them."""

from __future__ import annotations

from kaged.audit.events.types import Chapter, event

AGENT_TOOLING = Chapter(
    "Agent tooling",
    (
        event(
            "tool.called",
            "A tool was asked for, also when the call is refused later.",
            "tool_name:str caller:str session_id:str? run_id:str? request_id:str params:any",
            "alias:str? source:str changed_by:str? mutates:bool",
        ),
        event(
            "tool.completed",
            "A tool call ended, with a result or with an error that is no refusal.",
            "tool_name:str request_id:str duration_ms:num success:bool",
            "alias:str? error_code:str? dry_run:bool",
        ),
        event(
            "tool.denied",
            "A tool call was refused by the cage, the caller's scope, a pipeline plugin or a "
            "quota.",
            "tool_name:str caller:str denied_capability:str cage_summary:any",
            "alias:str? rule:str detail:str error_code:str changed_by:str? denied_by:str?",
        ),
        event(
            "access.granted",
            "A person let a call pass that was refused; `scope` is for how long, `grants` what.",
            "agent:str session_id:str run_id:str tool_name:str grants:list scope:str",
        ),
        event(
            "access.refused",
            "A call was refused and nobody let it pass: `no`, `expired` or `withdrawn`.",
            "agent:str session_id:str run_id:str tool_name:str grants:list reason:str",
        ),
        event(
            "access.taken_back",
            "What a person had let an agent do was taken back.",
            "grant_id:str agent:str session_id:str grant:str",
        ),
        event(
            "session.labelled",
            "Data with new labels came into a session; `source` is the call that brought it.",
            "session_id:str labels:list source:str",
        ),
        event(
            "code.lsp.server_spawned",
            "A language server started.",
            "language:str command:any project_id:str?",
            "pid:int",
        ),
        event(
            "code.lsp.server_crashed",
            "A language server ended unexpectedly.",
            "language:str exit_code:int? restart_count:int",
            "signal:any last_stderr:tail",
        ),
        event(
            "code.lsp.server_stopped",
            "A language server was stopped: `idle_timeout`, `project_unload`, `daemon_shutdown`, "
            "`reload`.",
            "language:str reason:str",
        ),
        event(
            "debug.session_started",
            "A debug session began; `script` is null for an attach.",
            "debug_session_id:str runtime:str script:str? caller:str",
        ),
        event(
            "debug.session_ended",
            "A debug session ended: `disconnect`, `crash` or `run_ended`.",
            "debug_session_id:str reason:str",
            "exit_code:int?",
        ),
        event(
            "debug.breakpoint_hit",
            "The debugged program stopped at a breakpoint.",
            "debug_session_id:str breakpoint_id:any path:str line:int",
        ),
        event(
            "file.written",
            "A file was created or overwritten.",
            "path:str bytes:int caller:str",
            "tool_name:str",
        ),
        event(
            "file.edited",
            "Text in a file was replaced.",
            "path:str replacements:int caller:str",
            "tool_name:str",
        ),
        event(
            "protected_path.refused",
            "A tool, script or undo was kept from writing what a program of the host would run; "
            "`who` is the tool.",
            "path:str who:str caller:str",
        ),
        event(
            "protected_path.taken_back",
            "A caged program had written what a program of the host would run: the old content is "
            "back, or what had not been there lies in `moved_to`. `keys` are those of a git "
            "configuration.",
            "path:str who:str reason:str",
            "cage_id:str moved_to:str? keys:any",
        ),
        event(
            "protected_path.unwatched",
            "A tree that a caged program can write has more folders than are looked at; what lies "
            "deep in it may have been changed.",
            "path:str who:str",
            "cage_id:str",
        ),
        event(
            "protected_path.changed",
            "A file changed that people trust after a review, such as a `Makefile`; `who` is the "
            "agent or the cage.",
            "path:str who:str why:str",
            "cage_id:str",
        ),
        event(
            "file.reverted",
            "The operator took back what a tool had done to a file; ids are of the newest of the "
            "undone steps.",
            "path:str run_id:str session_id:str caller:str",
            "change:str",
        ),
        event(
            "kaged.issue.created",
            "An issue was filed.",
            "issue_id:str project_id:str number:int title:str caller:str",
        ),
        event(
            "kaged.issue.updated",
            "The operator changed fields of an issue.",
            "issue_id:str updated_fields:list caller:str",
        ),
        event(
            "kaged.issue.commented",
            "A comment was added to an issue.",
            "issue_id:str update_id:str visibility:str caller:str",
        ),
        event(
            "kaged.issue.transitioned",
            "An issue went from one status to another.",
            "issue_id:str from_status:str to_status:str caller:str",
        ),
        event(
            "kaged.todo.set",
            "The todo list of an issue was replaced.",
            "issue_id:str count:int kind:str caller:str",
        ),
        event(
            "kaged.todo.added",
            "Todos were added to an issue.",
            "issue_id:str count:int kind:str caller:str",
        ),
        event(
            "kaged.todo.started",
            "Work on a todo began.",
            "issue_id:str todo_id:str content:str caller:str",
        ),
        event(
            "kaged.todo.completed",
            "A todo was done.",
            "issue_id:str todo_id:str content:str kind:str caller:str",
        ),
        event(
            "kaged.todo.dropped",
            "A todo was given up.",
            "issue_id:str todo_id:str content:str caller:str",
        ),
        event(
            "kaged.todo.noted",
            "A note was added to a todo.",
            "issue_id:str todo_id:str caller:str",
        ),
        event(
            "kaged.workflow.triggered",
            "A workflow run was started.",
            "run_id:str workflow_name:str inputs:any caller:str",
        ),
        event(
            "kaged.workflow.status_checked",
            "A workflow run was asked for its status.",
            "run_id:str workflow_name:str status:str caller:str",
        ),
        event(
            "kaged.workflow.cancelled",
            "The operator ended a workflow run.",
            "run_id:str workflow_name:str caller:str",
        ),
        event(
            "kaged.session.bound",
            "The operator let a session work on an issue, or on none.",
            "session_id:str number:int? caller:str",
        ),
        event(
            "kaged.session.created",
            "The operator began a session.",
            "session_id:str caller:str",
        ),
        event(
            "kaged.session.forked",
            "The operator branched a session off at an entry.",
            "session_id:str parent:str? entry_id:str? caller:str",
        ),
        event(
            "kaged.session.switched",
            "The operator made another session the project's current one.",
            "session_id:str from:str? caller:str",
        ),
        event(
            "kaged.session.deleted",
            "The operator took a session away, with its runs and tool calls.",
            "session_id:str caller:str",
        ),
        event(
            "kaged.session.exported",
            "The operator took a copy of a session.",
            "session_id:str entries:int caller:str",
        ),
        event(
            "kaged.session.imported",
            "The operator took in a session from a file; `origin` is its id where it came from.",
            "session_id:str origin:str entries:int caller:str",
        ),
        event(
            "kaged.interaction.requested",
            "A run pauses and asks a person: `ask`, `form` or `checkpoint`.",
            "request_id:str kind:str session_id:str",
        ),
        event(
            "kaged.interaction.answered",
            "A person answered, and the session goes on.",
            "request_id:str kind:str session_id:str",
            "outcome:str",
        ),
        event(
            "shell.backgrounded",
            "A shell command was started in the background; `shell.executed` says how it ended.",
            "command:cut cwd:str handle:str caller:str",
        ),
        event("shell.stopped", "An agent stopped a background command.", "handle:str caller:str"),
        event(
            "shell.executed",
            "A shell command ran.",
            "command:cut cwd:str exit_code:int? timed_out:bool duration_ms:num caller:str",
            "signal:any truncated:bool",
        ),
        event(
            "web.fetched",
            "The daemon asked a web server for a page on behalf of an agent; one for each place "
            "that it was led to.",
            "host:str port:int status:int caller:str",
        ),
    ),
)
