"""Ctrl-C during a fit."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that the call under way is finished and kept; a second
    one raises. Elsewhere than in the main thread, where no handler can be set, Ctrl-C is left alone."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def handle(*_: Any) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)
