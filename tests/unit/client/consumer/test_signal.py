"""The signal between a consumer's loop and the thread that polls."""

import threading

from raylog.client.consumer.signal import Signal


def test_what_was_signalled_before_the_wait_ends_it_once() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    assert signal.wait(0)
    assert not signal.wait(0)


def test_what_was_cleared_is_forgotten() -> None:
    signal = Signal()
    signal.clear()
    signal.set()
    signal.clear()
    assert not signal.wait(0.001)


def test_another_thread_ends_a_wait() -> None:
    signal = Signal()
    timer = threading.Timer(0.01, signal.set)
    timer.start()
    assert signal.wait(10)
    timer.join()
