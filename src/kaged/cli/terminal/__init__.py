"""A run in a terminal: Markdown as it streams, diffs, the last lines of commands, a status line.

`TerminalView` turns events into finished lines and lines that still change; a `Surface` puts them
on the screen: `DirectScreen` for `kaged run`, the prompt of `kaged chat` for a conversation.
"""
