"""Events of the daemon itself: life, access, projects, cages, the store and this log."""

from __future__ import annotations

from kaged.audit.events.types import Chapter, event

DAEMON = Chapter(
    "Daemon",
    (
        event(
            "daemon.started",
            "The daemon is ready for its first request.",
            "version:str pid:int",
            "home:str bind:any auth_mode:str duration_ms:num",
        ),
        event(
            "daemon.stopped",
            "The daemon is about to end; the last event of its life.",
            "reason:str",
            "pid:int uptime_ms:num signal:any",
        ),
        event(
            "daemon.config_reloaded",
            "The daemon read its configuration again.",
            "changed:list",
            "problems:list",
        ),
        event(
            "project.loaded",
            "A project was read and is ready.",
            "root:str slug:str",
            "name:str agents:int warnings:int trusted:bool reload:bool",
        ),
        event(
            "inbox.asked",
            "A request waits for a person; `digest` is that of what a yes means.",
            "inbox_id:str kind:str digest:str owner:str? chat_id:str?",
        ),
        event(
            "inbox.answered",
            "A person answered a request.",
            "inbox_id:str kind:str digest:str owner:str? chat_id:str?",
        ),
        event(
            "inbox.withdrawn",
            "A request needs no answer any more.",
            "inbox_id:str kind:str digest:str owner:str? chat_id:str?",
        ),
        event(
            "inbox.expired",
            "Nobody answered a request in time.",
            "inbox_id:str kind:str digest:str owner:str? chat_id:str?",
        ),
        event("project.unloaded", "A project was let go.", "root:str slug:str", "reason:str"),
        event(
            "project.load_failed",
            "A project could not be loaded.",
            "root:str reason:str",
            "slug:str? problems:list",
        ),
        event(
            "project.trusted",
            "The operator agreed to what a project asks for, or takes that back; `widened` is what "
            "had not been agreed to before.",
            "root:str trusted:bool",
            "slug:str? digest:str? widened:list",
            gates=True,
        ),
        event(
            "project.restricted",
            "A project asks for more than was agreed to and is held to reading; `known` is true "
            "where it has widened something agreed to before.",
            "root:str digest:str known:bool",
            "slug:str? widened:list",
        ),
        event(
            "access.denied",
            "A caller without access was refused by one of the daemon's listeners.",
            "surface:str reason:str",
            "peer:str? peer_uid:int? method:str path:str host:str? origin:str?",
        ),
        event(
            "access.token_issued",
            "A token or launch URL for the daemon was made; the token itself is not written.",
            "kind:str",
            "token_id:str expires_at:str?",
            gates=True,
        ),
        event(
            "access.signed_in",
            "A person signed in with a browser, at the provider of OpenID Connect.",
            "issuer:str operator:bool",
            "expires_at:str",
            gates=True,
        ),
        event(
            "access.signed_out",
            "Browser sessions of people ended: they asked for it, the provider did, or all did.",
            "reason:str sessions:int",
            "person_id:str",
        ),
        event(
            "invitation.created",
            "A person was invited. The code itself is not written.",
            "id:str person_id:str expires_at:str",
            gates=True,
        ),
        event(
            "invitation.accepted",
            "An invitation was used up; the person can come in until `expires_at`.",
            "id:str person_id:str expires_at:str",
            gates=True,
        ),
        event(
            "invitation.revoked",
            "An invitation, and the access that it gave, count no more.",
            "id:str person_id:str",
            gates=True,
        ),
        event(
            "service_account.created",
            "A service account was made; null for projects or operations means every one. The "
            "token itself is not written.",
            "name:str roles:list teams:list projects:any operations:any expires_at:str",
            gates=True,
        ),
        event(
            "service_account.revoked",
            "The token of a service account counts no more.",
            "name:str",
            gates=True,
        ),
        event(
            "cage.started",
            "A child process started. `caged` is false where the host starts one without a cage.",
            "cage_id:str pid:int what:str caged:bool",
            "argv:list grants:list seccomp:str network:any limits:str identity:str weaknesses:list "
            "reason:str",
        ),
        event(
            "cage.exited",
            "A child process ended. `cause` says why where it is known: `exit`, `signal`, `oom`, "
            "`timeout`.",
            "cage_id:str pid:int exit_code:int? signal:any",
            "what:str cause:str duration_ms:num last_stderr:tail",
        ),
        event(
            "cage.refused",
            "A child process was not started, because its cage could not be built as asked.",
            "what:str reason:str",
            "cage_id:str? path:str? code:str detail:str",
        ),
        event(
            "cage.orphans_ended",
            "At its start the daemon ended processes that a daemon before it had left running.",
            "processes:list",
        ),
        event(
            "cage.net.connected",
            "A caged process connected to a granted destination.",
            "cage_id:str host:str port:int",
            "address:str? what:str protocol:str outcome:str detail:str bytes_up:int bytes_down:int "
            "duration_ms:num",
        ),
        event(
            "cage.net.denied",
            "A caged process tried to reach a destination it is not granted.",
            "cage_id:str host:str port:int reason:str",
            "address:str? what:str protocol:str rule:str outcome:str count:int",
        ),
        event(
            "store.migrated",
            "The database was brought to a newer schema at start.",
            "from_version:int to_version:int",
            "backup:str?",
        ),
        event(
            "audit.degraded",
            "This log could not be written from this moment on; changes were refused until it "
            "recovered.",
            "error:str",
            "error_code:str",
        ),
        event(
            "audit.recovered",
            "This log can be written again. `lost` counts events that could not be kept in the "
            "meantime.",
            "duration_ms:num lost:int refused:int",
            "lost_by_name:obj",
        ),
        event(
            "audit.chain_mismatch",
            "At start the chain did not end where its anchors say: rows are missing, or were "
            "replaced.",
            "problems:list found_seq:int found_hash:str",
            "table_seq:int? table_hash:str? file_seq:int? file_hash:str?",
        ),
        event(
            "audit.folded",
            "One guest caused more events of one kind than are written; the others were counted. "
            "`details` has the counts by what tells them apart, and sums.",
            "kind:str guest:str count:int first_at:str last_at:str details:list",
        ),
        event(
            "audit.exported",
            "A copy of this log was exported.",
            "rows:int complete:bool",
            "filter:obj",
        ),
    ),
)
