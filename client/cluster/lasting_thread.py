"""Calls that start processes, in a thread that lives as long as this process.

Ray has the kernel end its own processes with the one that started them (PR_SET_PDEATHSIG). The kernel goes by the
thread: Ray that was started in a worker's thread would be killed when that thread ends, and the cluster with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_lasting_thread(call: Callable[[], Result]) -> Result:
    """Make a call in the main thread if this is it, else in one that is kept for it; returns what it returns."""
    if threading.current_thread() is threading.main_thread():
        return call()
    outcome: Future[Result] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # any error is raised where the call was made
            outcome.set_exception(error)
            return
        threading.Event().wait()  # until the process ends, as this is no thread that Python waits for

    threading.Thread(target=work, name="raylog-start", daemon=True).start()
    return outcome.result()
