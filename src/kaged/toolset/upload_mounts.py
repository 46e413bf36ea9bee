"""`with_uploads`: what a person gave along, in the cages of commands that act for them."""

from __future__ import annotations

from dataclasses import replace

from kaged.cage.request import HostMount
from kaged.kernel.policy import CagePolicy
from kaged.toolbox.project.person_uploads import INSIDE, PersonUploads
from kaged.toolbox.shell.launch import Attach, Attachment, ShellCommand


def with_uploads(uploads: PersonUploads, attach: Attach) -> Attach:
    """Return what gives a caged command its person's uploads, read-only, beside what it gets."""

    def both(policy: CagePolicy, command: ShellCommand) -> Attachment:
        added = attach(policy, command)
        own = uploads.own(command.identity)
        if own is None or not own.is_dir():
            return added
        return replace(added, mounts=(*added.mounts, HostMount(str(own), INSIDE)))

    return both
