"""What is started for good in a thread that ends lives on, although the kernel ends it with its thread."""

import ctypes
import signal
import subprocess
import threading
from collections.abc import Callable

import pytest

from raylog.client.cluster.lasting_thread import in_lasting_thread

PR_SET_PDEATHSIG = 1
Child = subprocess.Popen[bytes]


def with_its_thread() -> None:
    """As Ray does for its own processes, between fork and exec."""
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError("prctl is refused")


def child() -> Child:
    return subprocess.Popen(["sleep", "60"], preexec_fn=with_its_thread)


def started_in_a_thread(start: Callable[[], Child]) -> Child:
    made: list[Child] = []
    thread = threading.Thread(target=lambda: made.append(start()))
    thread.start()
    thread.join(30)
    return made[0]


def ends_within(seconds: float, process: Child) -> bool:
    try:
        return process.wait(seconds) == -signal.SIGKILL
    except subprocess.TimeoutExpired:
        return False
    finally:
        process.kill()
        process.wait(10)


def test_a_process_outlives_the_thread_that_started_it() -> None:
    assert ends_within(20, started_in_a_thread(child)), "this is what the kernel does"
    assert not ends_within(1, started_in_a_thread(lambda: in_lasting_thread(child)))


def test_errors_come_out_where_the_call_was_made() -> None:
    raised: list[BaseException] = []

    def refused() -> None:
        raise OSError("no room")

    def call() -> None:
        with pytest.raises(OSError, match="no room") as caught:
            in_lasting_thread(refused)
        raised.append(caught.value)

    call()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(30)
    assert len(raised) == 2


def test_the_main_thread_makes_the_call_itself() -> None:
    assert in_lasting_thread(threading.current_thread) is threading.main_thread()
