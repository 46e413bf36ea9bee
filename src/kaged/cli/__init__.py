"""The operator's commands: an HTTP client of the daemon, plus what works without one."""
