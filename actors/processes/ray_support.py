"""Shared by all Ray actors: their options, how they begin and end, and how they find the controller.

Imported by every actor's process, so it imports next to nothing of Raylog.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylog.actors.naming import CONTROLLER, MAKER_PREFIX, NAMESPACE
from raylog.actors.processes.restart_notes import RestartNotes
from raylog.base.errors import ConnectionFailed

logger = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

LOOPBACK: Final = "127.0.0.1"
A_SHARE: Final = 0.0001
"""Amount of the resource ``raylog`` that controller and coordinators claim, to run where Raylog runs: Ray's minimum."""
ACTOR_PREFIXES: Final = ("broker-", "replica:", "group-coordinator-", "transaction-coordinator-", MAKER_PREFIX)
UNUSED: Final = ("pyarrow", "pydantic", "starlette")
"""Libraries that Ray imports into each worker if they are installed: pyarrow with numpy takes 11 MB and a quarter of a
CPU second, pydantic (a dependency of ray[default] and ray[serve]) 10 MB and a fifth."""
FIND_TIMEOUT_S: Final = 1.0
MAKE_TIMEOUT_S: Final = 60.0
FATAL_EXIT_CODE: Final = 70
CONTROL_TIMEOUT_S: Final = 5.0
RESTART_PAUSE_S: Final = 1.0
_store: Final = ThreadPoolExecutor(4, "control-store")
"""Threads that wait for Ray's control store; not the event loop's threads, which read and write files."""


def end_process(reason: str) -> None:
    """End this actor's process at once; Ray restarts the actor, which recovers from its log."""
    logger.error("%s", reason)
    sys.stderr.write(f"raylog: {reason}\n")
    sys.stderr.flush()
    os._exit(FATAL_EXIT_CODE)


async def answer(reference: Any, timeout_s: float) -> Any:
    """Await the answer to a Ray call. Raises what the call raised, and TimeoutError."""
    async with asyncio.timeout(timeout_s):  # wait_for of Python 3.11 can swallow a cancellation
        return await asyncio.wrap_future(reference.future())


async def at_store(
    timeout_s: float, call: Callable[Parameters, Result], /, *args: Parameters.args, **options: Parameters.kwargs
) -> Result:
    """Run a call of Ray that waits for its control store, and return its result. Raises its errors, and TimeoutError.

    It runs in a thread, because the control store may hang, or be lost with its node, for a minute, and the event loop
    has to serve meanwhile. A call that times out continues, and may still take effect.
    """
    async with asyncio.timeout(timeout_s):
        return await asyncio.get_running_loop().run_in_executor(_store, partial(call, *args, **options))


async def handle_of(name: str, timeout_s: float = FIND_TIMEOUT_S) -> Any:
    """Return the handle of a Raylog actor, including one that is being restarted.

    Raises ValueError if there is none, Ray's errors, and TimeoutError.
    """
    return await at_store(timeout_s, ray.get_actor, name, namespace=NAMESPACE)


async def listed_names(prefix: str, timeout_s: float = CONTROL_TIMEOUT_S) -> set[str]:
    """Return the names of Raylog's actors with this prefix, including starting ones. Raises as :func:`handle_of`."""
    known = await at_store(timeout_s, ray.util.list_named_actors, all_namespaces=True)
    return {entry["name"] for entry in known if entry["namespace"] == NAMESPACE and entry["name"].startswith(prefix)}


def end_replica(reason: str) -> None:
    """As :func:`end_process`, after noting the failure: the more failures in a row, the longer a restart waits."""
    RestartNotes(actor_name()).note_failure()
    end_process(reason)


def actor_name() -> str:
    """Return the name of the actor of this process; "" outside actors."""
    return str(ray.get_runtime_context().get_actor_name() or "")


async def begin(start: Callable[[], Awaitable[None]], *, paced: bool = False) -> None:
    """Start an actor's server in its constructor.

    At the first start a failure is raised to the creator of the actor. A restarted actor has no creator to report to,
    and Ray gives up an actor for good when its constructor raises. So then the process ends instead, after a pause, and
    Ray tries again. ``paced``: the pause grows with each failure in a row (``core/restart_pause.py``).
    """
    notes = RestartNotes(actor_name()) if paced else None
    if notes is not None and (pause_s := notes.pause_s()):
        logger.warning("%s failed several times in a row and starts in %.0f s", actor_name(), pause_s)
        await asyncio.sleep(pause_s)
    try:
        await start()
    except Exception as error:  # any error: an actor that does not serve must not stay
        restarted: bool = ray.get_runtime_context().was_current_actor_reconstructed
        if not restarted:
            raise
        if notes is None:
            await asyncio.sleep(RESTART_PAUSE_S)
        else:
            notes.note_failure()
        end_process(f"the restart failed, trying again: {error!r}")
    stand_up()


def stand_up() -> None:
    """Tune this process for a server's latency, once everything that it needs is loaded.

    The loaded objects stay for good, so freezing them saves tens of milliseconds in each full garbage collection. Ray
    runs its workers at low priority (niceness 15), which suits tasks that compute, but not a log with waiting clients.
    Lowering the niceness from here needs root or CAP_SYS_NICE; without them, start Ray with ``RAY_worker_niceness=0``.
    When that variable is set, to any value, the niceness stays.
    """
    gc.collect()
    gc.freeze()
    if "RAY_worker_niceness" in os.environ:
        return
    with suppress(OSError, ValueError):
        for thread in os.listdir("/proc/self/task"):  # on Linux each thread has its own niceness
            if os.getpriority(os.PRIO_PROCESS, int(thread)) > 0:
                os.setpriority(os.PRIO_PROCESS, int(thread), 0)


async def find_controller() -> tuple[str, int]:
    """Return the controller's endpoint. Raises :class:`ConnectionFailed` while it cannot be found."""
    try:
        handle = await handle_of(CONTROLLER)
        host, port = await answer(handle.endpoint.remote(), FIND_TIMEOUT_S)
    except (ValueError, TimeoutError, ray.exceptions.RayError) as error:
        raise ConnectionFailed(f"The controller cannot be found at the moment: {error}") from None
    return host, port


def node_address() -> str:
    """Return the address at which other nodes of the Ray cluster reach this one."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def pinned(node_id: str) -> NodeAffinitySchedulingStrategy:
    """Return the scheduling strategy that keeps an actor on one node, where its files are."""
    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def actor_options(name: str, *, node_id: str | None = None) -> dict[str, Any]:
    """Return the options that every Raylog actor has; ``node_id`` pins it to a node."""
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
        "get_if_exists": True,
    }
    if node_id is not None:
        options["scheduling_strategy"] = pinned(node_id)
    return options


def find_actor(name: str) -> Any:
    """Return the handle of a Raylog actor, including one that is being restarted; None when there is none.

    It blocks while it waits for Ray's control store, so it is for programs without an event loop.
    """
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


async def find_beside(name: str) -> Any:
    """As :func:`find_actor`, without blocking the event loop. Raises Ray's errors, and TimeoutError."""
    try:
        return await handle_of(name, CONTROL_TIMEOUT_S)
    except ValueError:
        return None


async def wait_until_ended(name: str, timeout_s: float = 10.0) -> None:
    """Wait until Ray no longer knows an actor of this name. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while await find_beside(name) is not None:  # noqa: ASYNC110  # Ray has no event for it
            await asyncio.sleep(0.02)


def keep_unused_out() -> None:
    """Prevent the import of libraries that Raylog's actors do not use (UNUSED) in this process.

    Ray imports them into each worker before it reads the first argument, to be able to pass their objects; calls
    between Raylog's actors have no such objects. This runs when Ray loads an actor's class, which happens earlier;
    elsewhere it does nothing.
    """
    if not ray.is_initialized():
        return
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return
    name = context.get_actor_name() or ""
    if name == CONTROLLER or name.startswith(ACTOR_PREFIXES):
        for library in UNUSED:
            sys.modules.setdefault(library, None)  # type: ignore[arg-type]  # None makes Python refuse the import


def ray_logs() -> Path | None:
    """Return the folder of the log files of Ray's workers on this node; None if Ray does not show it."""
    node = getattr(ray._private.worker, "_global_node", None)
    return None if node is None else Path(node.get_logs_dir_path())
