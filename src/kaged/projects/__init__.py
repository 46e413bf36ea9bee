"""The projects that the daemon holds: `ProjectService`, `ProjectView`, `project_not_found`."""
