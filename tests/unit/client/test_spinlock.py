"""A lock that its own thread meets again: a signal handler is refused, and nothing else is."""

import threading

import pytest

from raylog.base.errors import ConcurrentUse
from raylog.client import spinlock
from raylog.client.spinlock import Spinlock, inlines, refuse_waiting


def test_a_thread_that_meets_its_own_lock_is_refused() -> None:
    turn = Spinlock()
    with turn:
        with pytest.raises(ConcurrentUse, match="A signal handler has interrupted send"), turn:
            pass
        with pytest.raises(ConcurrentUse):
            refuse_waiting()
        assert not hasattr(turn, "free")  # still that of the outer section
    refuse_waiting()
    assert turn.free


def test_another_thread_may_wait_meanwhile() -> None:
    turn = Spinlock()
    errors: list[ConcurrentUse] = []

    def wait() -> None:
        try:
            refuse_waiting()
        except ConcurrentUse as error:
            errors.append(error)

    with turn:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    assert not errors


def holding(lock: Spinlock, inside: list[bool], before: list[bool], after: list[bool]) -> None:
    before.append(lock.is_held_here)
    turn = lock
    try:
        del turn.free
    except AttributeError:
        del turn
        inside.append(lock.is_held_here)
        return
    try:
        inside.append(lock.is_held_here)
    finally:
        turn.free = True
    after.append(lock.is_held_here)


inlines(holding)


def test_a_function_that_holds_it_itself_is_found_on_the_stack() -> None:
    lock = Spinlock()
    inside: list[bool] = []
    before: list[bool] = []
    after: list[bool] = []
    holding(lock, inside, before, after)
    assert (inside, before, after) == ([True], [False], [False])


def test_a_lock_of_another_thread_is_not_taken_for_ones_own() -> None:
    lock = Spinlock()
    inside: list[bool] = []
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    holding(lock, inside, [], [])
    over.set()
    thread.join()
    assert inside == [False]


def test_a_lock_that_is_dropped_is_forgotten() -> None:
    before = len(spinlock._all)
    lock = Spinlock()
    assert len(spinlock._all) == before + 1
    del lock
    assert len(spinlock._all) == before
