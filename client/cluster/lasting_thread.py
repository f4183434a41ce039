"""Runs calls that start processes in a thread that lives as long as this process.

Ray has the kernel end its processes when their parent ends (PR_SET_PDEATHSIG). To the kernel the parent is the thread:
a Ray that was started in a short-lived thread would be killed when that thread ends, and the cluster with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_lasting_thread(call: Callable[[], Result]) -> Result:
    """Call in this thread if it is the main one, else in a new thread that never ends; return or raise as the call."""
    if threading.current_thread() is threading.main_thread():
        return call()
    outcome: Future[Result] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # the caller's thread raises it
            outcome.set_exception(error)
            return
        threading.Event().wait()  # until the process ends: Python does not wait for daemon threads

    threading.Thread(target=work, name="raylog-start", daemon=True).start()
    return outcome.result()
