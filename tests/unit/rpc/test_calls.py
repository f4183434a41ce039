"""Deadlines of waiting calls, on a real loop."""

import asyncio
from functools import partial

import pytest
from msgspec import Raw

from raylog.base.errors import ConnectionFailed, OffsetOutOfRange, RaylogError, RequestTimedOut
from raylog.rpc.calls import SWEEP_GRAIN_S, CallbackWaiter, PendingCalls, fail
from raylog.rpc.framing import decode_args
from raylog.rpc.reply import Reply


def added(pending: PendingCalls, number: int, method: str, timeout_s: float) -> asyncio.Future[Reply]:
    """A call that waits as a future."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    pending.add(number, method, timeout_s, future)
    return future


async def test_calls_expire_by_their_own_deadline_not_by_their_order() -> None:
    loop = asyncio.get_running_loop()
    pending = PendingCalls(loop)
    begun = loop.time()
    ended: dict[str, float] = {}
    futures = []

    def note(name: str, _: object) -> None:
        ended[name] = loop.time() - begun

    for number, (name, timeout_s) in enumerate([("long", 0.4), ("short", 0.1), ("middle", 0.25)]):
        future = added(pending, number, name, timeout_s)
        future.add_done_callback(partial(note, name))
        futures.append(future)
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(result, RequestTimedOut) for result in results)
    assert list(ended) == ["short", "middle", "long"]
    assert ended["short"] >= 0.1
    assert ended["middle"] >= 0.25
    assert ended["long"] >= 0.4
    assert len(pending) == 0


async def test_an_answered_or_cancelled_call_leaves_nothing_behind() -> None:
    pending = PendingCalls(asyncio.get_running_loop())
    answered, cancelled, waiting = (added(pending, number, "m", SWEEP_GRAIN_S) for number in (1, 2, 3))
    cancelled.cancel()
    assert pending.resolve(1, Raw(b"\xa3yes"), memoryview(b""))
    assert (await answered).args == "yes"
    with pytest.raises(RequestTimedOut):
        await waiting
    assert len(pending) == 0
    assert not pending.resolve(3, Raw(b"\xc0"), memoryview(b""))
    assert not pending.reject(2, OffsetOutOfRange("late"))


async def test_all_calls_fail_at_once_when_the_connection_goes() -> None:
    pending = PendingCalls(asyncio.get_running_loop())
    futures = [added(pending, number, "fetch", 60) for number in range(100)]
    pending.fail_all("cable cut")
    for future in futures:
        with pytest.raises(ConnectionFailed, match="fetch: cable cut"):
            await future


async def test_an_unwatched_failure_is_not_reported_by_the_loop() -> None:
    pending = PendingCalls(asyncio.get_running_loop())
    _ = added(pending, 1, "m", 10)
    pending.fail_all("gone")


async def test_a_callback_gets_answers_at_once_and_errors_in_a_later_turn() -> None:
    loop = asyncio.get_running_loop()
    pending = PendingCalls(loop)
    outcomes: list[Reply | RaylogError] = []
    for number in (1, 2):
        pending.add(number, "m", 10, CallbackWaiter(loop, outcomes.append))
    assert pending.resolve(1, Raw(b"\xa3yes"), memoryview(b""))
    assert [decode_args(item.args) for item in outcomes if isinstance(item, Reply)] == ["yes"]
    pending.fail_all("cut")
    assert len(outcomes) == 1
    await asyncio.sleep(0)
    assert isinstance(outcomes[1], ConnectionFailed)
    assert not pending.resolve(2, Raw(b"\xa4late"), memoryview(b""))


async def test_a_bug_in_a_callback_reaches_the_loop_and_not_the_connection() -> None:
    loop = asyncio.get_running_loop()
    reported: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def bug(_: object) -> None:
        raise ZeroDivisionError

    waiting = CallbackWaiter(loop, bug)
    waiting.set_result(Reply(None, memoryview(b"")))
    assert [type(item) for item in reported] == [ZeroDivisionError]
    fail(waiting, ConnectionFailed("too late to be delivered"))
    await asyncio.sleep(0)
    assert len(reported) == 1
