"""What whole tests act with: a daemon as people start it, and programs that other people wrote.

Nothing below this folder imports `kaged`. A daemon is a process of its own with default settings,
reached by the command line, HTTP, MCP, or files that it reads. `requirements.levels` holds whole
tests to that.
"""
