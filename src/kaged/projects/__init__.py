"""The projects that the daemon holds: `ProjectService`, `ProjectView`, `no_usable_project`."""
