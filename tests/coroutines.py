"""Runs tests that are coroutine functions: a plugin of pytest, named in ``tests/conftest.py``."""

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

import pytest

DEADLINE_S = 60.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function with its fixtures on an event loop of its own; leave other tests to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run one scenario on a loop of its own, within the deadline; fail on anything the loop reports as unhandled."""
    reported: list[dict[str, Any]] = []

    async def guarded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with asyncio.timeout(DEADLINE_S):
            await scenario

    asyncio.run(guarded())
    assert not reported, reported
