"""The shared loop of the synchronous clients, their methods, and the signal that wakes a thread."""

import asyncio
import inspect
import multiprocessing
import threading
from multiprocessing.connection import Connection

import pytest

from raylog.base.errors import ClientClosed
from raylog.client import runtime
from raylog.client.admin.admin import Admin, AsyncAdmin
from raylog.client.consumer.asynchronous import AsyncConsumer
from raylog.client.consumer.consumer import Consumer
from raylog.client.runtime import Signal


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_a_coroutine_runs_on_another_thread_and_its_result_comes_back() -> None:
    async def where() -> int:
        return threading.get_ident()

    shared = runtime.shared()
    assert shared.run(answer(7), 5) == 7
    assert shared.run(where(), 5) != threading.get_ident()


def test_all_threads_share_one_runtime() -> None:
    assert runtime.shared() is runtime.shared()


def test_a_late_coroutine_is_cancelled() -> None:
    ended = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        runtime.shared().run(hang(), 0.01)
    assert ended.wait(5)


def test_waiting_on_the_loops_own_thread_is_refused_instead_of_hanging() -> None:
    shared = runtime.shared()

    async def wait_for_oneself() -> str:
        try:
            shared.run(answer(1), 1)
        except RuntimeError as error:
            return str(error)
        return ""

    assert "asyncio twin" in shared.run(wait_for_oneself(), 5)


def _child(pipe: Connection) -> None:
    pipe.send(runtime.shared().run(answer(3), 5))
    pipe.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    runtime.shared()
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(there,))
    child.start()
    assert here.poll(20)
    assert here.recv() == 3
    child.join(20)
    assert child.exitcode == 0
    here.close()
    there.close()


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


@pytest.mark.parametrize(
    ("blocking", "asynchronous", "others"),
    [
        (Admin, AsyncAdmin, {"start", "stop"}),
        (Consumer, AsyncConsumer, {"start", "stop", "getmany", "getone", "getcolumns", "commit", "commit_nowait"}),
    ],
)
def test_a_synchronous_client_has_the_methods_of_the_asynchronous_one(
    blocking: type, asynchronous: type, others: set[str]
) -> None:
    for name, method in inspect.getmembers(asynchronous, inspect.isfunction):
        if not name.startswith("_") and name not in others:
            ours = getattr(blocking, name)
            assert inspect.signature(ours) == inspect.signature(method), name
            assert inspect.getdoc(ours) == inspect.getdoc(method), name
            assert not inspect.iscoroutinefunction(ours), name


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_the_loop_survives_user_code_that_ends_the_program(error: BaseException) -> None:
    own = runtime.Runtime()
    ran = threading.Event()

    async def exits() -> None:
        await asyncio.sleep(0)
        raise error

    def callback() -> None:
        raise error

    try:
        with pytest.raises(type(error)):
            own.run(exits(), 10)
        own.call_soon(callback)
        own.call_soon(ran.set)
        assert ran.wait(10)
        assert own.run(answer(7), 10) == 7
    finally:
        own.stop()


def test_a_wait_for_a_thread_that_has_ended_is_refused() -> None:
    own = runtime.Runtime()
    refused: list[BaseException] = []
    begun = threading.Event()

    async def shielded() -> None:
        begun.set()
        while True:  # not even the end of the loop ends it
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    def wait() -> None:
        try:
            own.run(shielded())
        except (ClientClosed, RuntimeError) as error:
            refused.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert begun.wait(10)
    own.stop()
    waiting.join(10)
    assert "has ended" in str(refused[0])
    with pytest.raises(ClientClosed):
        own.run(answer(1))
    other = threading.Thread(target=lambda: refused.append(RuntimeError(str(own.is_current_thread()))))
    other.start()  # the system may give it the identifier of the one that has ended
    other.join(10)
    assert str(refused[1]) == "False"
