"""The projects that the daemon holds: `ProjectService`, `ProjectView`, `ProjectNotFound`."""
