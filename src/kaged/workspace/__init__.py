"""A project's files: `Workspace`, `ProjectPath`, `PathGuard`, `ReadLog`, `FileLocks`, `ChangeFeed`.

text → PathGuard.resolve → ProjectPath → locks → read or write_all → settle (read log, journal,
change feed)
"""

from kaged.workspace.batch import PlannedWrite, Written
from kaged.workspace.changes import ChangeFeed, ChangeKind, FileChange
from kaged.workspace.content import FileContent
from kaged.workspace.errors import PathRefused
from kaged.workspace.guard import PathGuard
from kaged.workspace.journal import UndoJournal
from kaged.workspace.locks import FileLocks
from kaged.workspace.path import ProjectPath
from kaged.workspace.readlog import ReadLog
from kaged.workspace.threads import FileThreads
from kaged.workspace.undo_step import Author, UndoStep
from kaged.workspace.workspace import Undone, Workspace

__all__ = [
    "Author",
    "ChangeFeed",
    "ChangeKind",
    "FileChange",
    "FileContent",
    "FileLocks",
    "FileThreads",
    "PathGuard",
    "PathRefused",
    "PlannedWrite",
    "ProjectPath",
    "ReadLog",
    "UndoJournal",
    "UndoStep",
    "Undone",
    "Workspace",
    "Written",
]
