"""Signals that whoever started us made us deaf to, and that our children must not inherit."""

from __future__ import annotations

import signal
from types import FrameType

# Python itself ignores these, and gives them back to every child that it starts.
_PYTHONS_OWN = {signal.SIGPIPE, signal.SIGXFSZ}
_FOR_EVERYONE = {signal.SIGINT, signal.SIGQUIT}


def unmute_for_children() -> None:
    """Reset ignored signals for children, whatever `nohup`, a background job or a service set.

    An ignored signal stays ignored across exec, a handled one does not: so what must stay without
    effect here (SIGHUP after `nohup`) is handled by doing nothing. SIGINT and SIGQUIT work again.
    A blocked signal would be inherited as well, and is unblocked.
    """
    for number in signal.valid_signals() - _PYTHONS_OWN:
        if signal.getsignal(number) is signal.SIG_IGN:
            if number == signal.SIGINT:
                signal.signal(number, signal.default_int_handler)
            else:
                signal.signal(number, signal.SIG_DFL if number in _FOR_EVERYONE else _nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal by doing nothing."""
