#!/usr/bin/env bash
# A whole plugin without any SDK: one JSON object per line on stdin, answers on stdout, logs on stderr.
set -u

answer() { # id, result as JSON
    jq -cn --argjson id "$1" --argjson result "$2" '{jsonrpc: "2.0", id: $id, result: $result}'
}

fail() { # id, code, message
    jq -cn --argjson id "$1" --argjson code "$2" --arg message "$3" \
        '{jsonrpc: "2.0", id: $id, error: {code: $code, message: $message}}'
}

status() {
    local load mem disk
    read -r load _ </proc/loadavg
    mem=$(while read -r key value _; do [ "$key" = MemAvailable: ] && echo "$value"; done </proc/meminfo)
    disk=$(df -Pk /tmp | tail -n 1 | { read -r _ _ _ free _; echo "$free"; })
    jq -cn --argjson load "$load" --argjson mem "${mem:-0}" --argjson disk "${disk:-0}" \
        '{load: $load, available_memory_kib: $mem, free_scratch_kib: $disk}'
}

while IFS= read -r line; do
    method=$(jq -r '.method // empty' <<<"$line" 2>/dev/null)
    id=$(jq -c '.id // empty' <<<"$line" 2>/dev/null)
    case "$method" in
        initialize)
            answer "$id" '{"name":"shell-status","version":"0.1.0","api_version":1,
                "methods":["status.get","status.echo"],"notifications":[],"capabilities_used":[]}' ;;
        ping) answer "$id" '{"status":"ok"}' ;;
        shutdown) exit 0 ;;
        status.get) answer "$id" "$(status)" ;;
        status.echo) answer "$id" "$(jq -c '.params | del(._context)' <<<"$line")" ;;
        *) [ -n "$id" ] && [ -n "$method" ] && fail "$id" -32601 "Method not found: $method" ;;
    esac
done
