"""The spare replicas of one broker: made in the background, turned into replicas, and replaced by new spares.

Owned by the ``Broker`` actor. The role of a spare is noted in the data directory (``spare_roles.py``) before the spare
gets it, so that it survives a restart of the spare and of the broker. ``spare_plan.py`` decides what to make or end.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from raylog.actors.actor_specs import ReplicaSpec, SpareSpec
from raylog.actors.clock import monotonic_ms
from raylog.actors.controller_link import Place
from raylog.actors.naming import REPLICA_PREFIX, SPARE_PREFIX, spare_prefix
from raylog.actors.processes.made_actors import (
    REPLICA,
    ActorRaised,
    ActorTrouble,
    MadeActors,
    NoSuchActor,
    Recipe,
)
from raylog.actors.processes.ray_support import MAKE_TIMEOUT_S, listed_names
from raylog.actors.processes.spare_plan import QUIET_MS, Sight, choose, plan
from raylog.actors.processes.spare_roles import name_of, noted_roles, role_file, write_role
from raylog.rpc import Secret
from raylog.storage.directory import partition_folder

logger = logging.getLogger(__name__)

LOOK_S: Final = 10.0
QUERY_S: Final = 2.0


class SpareReplicas:
    """Spares of one broker, and which of its replicas run in a former spare."""

    def __init__(self, folder: Path, *, actors: MadeActors, node_id: str, secret: Secret) -> None:
        """No spare is made before :meth:`start`; roles noted earlier are read at the first query."""
        self._folder = folder
        self._actors = actors
        self._node_id = node_id
        self._secret = secret
        self._roles: dict[str, str] = {}
        self._idle: list[str] = []
        self._barred: set[str] = set()
        self._loaded = False
        self._loading = asyncio.Lock()
        self._starting = 0
        self._last_start_ms = monotonic_ms()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, broker: Callable[[], int], wanted: Callable[[], int]) -> None:
        """Begin to make and end spares; ``broker`` and ``wanted`` return the broker's id and the number of spares."""
        self._task = asyncio.create_task(self._run(broker, wanted), name="spares")

    async def stop(self) -> None:
        """Make no more spares; the existing ones stay."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Make no spares during a block, nor shortly after it, because a replica is being started."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            self._last_start_ms = monotonic_ms()
            self._changed.set()

    async def actor_of(self, replica: str) -> str:
        """Return the name of this replica's actor: of its former spare, or the replica's own name."""
        await self._load()
        return self._roles.get(replica, replica)

    async def replicas(self, broker: int) -> set[str]:
        """Return the names of this broker's replicas that have an actor, a former spare or one of their own."""
        await self._load()
        mine = f":broker-{broker}:"
        named = {
            name for name in await listed_names(REPLICA_PREFIX) if mine in name and not name.startswith(SPARE_PREFIX)
        }
        return named | set(self._roles)

    async def adopt(self, spec: ReplicaSpec, controller: Place | None) -> bool:
        """Let a spare become the replica; returns when it serves. False: the replica needs a process of its own.

        ``controller``: the controller's address, as far as the broker knows it. Raises ActorTrouble and OSError.
        """
        await self._load()
        replica = name_of(spec)
        if replica not in self._roles and not await self._take_spare(spec):
            return False
        actor = self._roles[replica]
        try:
            await self._actors.call(actor, "adopt", spec, controller, timeout_s=MAKE_TIMEOUT_S)
        except NoSuchActor:  # it was ended for good
            await self.forget(replica)
            return False
        except ActorRaised:
            # The replica could not start. Its own actor would have ended, so end this one, and use up no other spare.
            await self._actors.end(actor, is_stopped_first=False)
            await self.forget(replica)
            self._barred.add(replica)  # last: forgetting a replica lifts the bar
            raise
        return True

    async def _take_spare(self, spec: ReplicaSpec) -> bool:
        """Choose a spare for the replica, and note it before the spare is called; False: there is none."""
        replica = name_of(spec)
        if choose(self._idle, self._roles, self._barred, replica) is None or await self._actors.exists(replica):
            return False
        actor = choose(self._idle, self._roles, self._barred, replica)  # again: another may have taken it meanwhile
        if actor is None:
            return False
        self._idle.remove(actor)
        self._roles[replica] = actor
        try:
            await asyncio.to_thread(write_role, role_file(self._folder, actor), spec)
        except OSError:
            del self._roles[replica]
            self._idle.append(actor)
            raise
        return True

    async def forget(self, replica: str) -> None:
        """Remove the note about a replica, after its actor has ended for good; no error if there is none."""
        self._barred.discard(replica)
        actor = self._roles.pop(replica, None)
        if actor is not None:
            await asyncio.to_thread(role_file(self._folder, actor).unlink, missing_ok=True)

    async def _load(self) -> None:
        """Read, once, the notes of earlier processes of this broker, and remove those that are no longer valid.

        A replica without a folder has never begun: its actor is ended, and it gets another one if it is wanted.
        """
        async with self._loading:
            if self._loaded:
                return
            living = {role_file(self._folder, name): name for name in await listed_names(SPARE_PREFIX)}
            for file, spec in await asyncio.to_thread(noted_roles, self._folder, self._secret):
                actor = living.get(file)
                begun = spec is not None and partition_folder(self._folder, spec.topic, spec.partition).is_dir()
                if spec is not None and begun and actor is not None:
                    self._roles[name_of(spec)] = actor
                    continue
                if actor is not None:
                    await self._actors.end(actor, is_stopped_first=False)
                await asyncio.to_thread(file.unlink, missing_ok=True)
            self._loaded = True

    async def _run(self, broker: Callable[[], int], wanted: Callable[[], int]) -> None:
        while True:
            pause_s = LOOK_S
            try:
                if broker() >= 0:
                    await self._load()
                    pause_s = await self._look(broker(), wanted)
            except Exception as error:  # any error (disk, Ray, timeout): the next check may succeed
                logger.warning("the spare replicas were not looked after, trying again: %r", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):  # asyncio.wait_for of Python 3.11 can swallow a cancellation
                    await self._changed.wait()
            self._changed.clear()

    async def _look(self, broker: int, wanted: Callable[[], int]) -> float:
        """Do the next step; returns the wait before the one after it, in seconds."""
        quiet_ms = monotonic_ms() - self._last_start_ms
        if self._starting or quiet_ms < QUIET_MS:
            return max(QUIET_MS - quiet_ms, 100) / 1000
        living = await listed_names(spare_prefix(broker))
        self._idle = [name for name in self._idle if name in living]
        roles = {name: await self._role(name) for name in living - set(self._idle) - set(self._roles.values())}
        taken = set(self._roles.values())  # again, because it may have changed during the calls
        self._idle += sorted(name for name, role in roles.items() if role == "" and name not in taken)
        todo = plan(
            Sight(
                idle=self._idle,
                unknown=[name for name, role in roles.items() if role is None and name not in taken],
                stray=[name for name, role in roles.items() if role and name not in taken],
                wanted=wanted(),
                starting=self._starting,
                quiet_ms=monotonic_ms() - self._last_start_ms,
            )
        )
        self._idle = [name for name in self._idle if name not in todo.end]
        for name in todo.end:
            await self._actors.end(name, is_stopped_first=False)
        if not todo.make:
            return LOOK_S
        await self._make(f"{spare_prefix(broker)}{secrets.token_hex(4)}")
        return 0.0

    async def _make(self, name: str) -> None:
        spare = SpareSpec(role_file=role_file(self._folder, name), data_directory=self._folder, secret=self._secret)
        recipe = Recipe(kind=REPLICA, arguments=(None, spare), node_id=self._node_id, first_call="role")
        await self._actors.start(name, recipe)
        self._idle.append(name)

    async def _role(self, name: str) -> str | None:
        """Return the name of the replica that an actor is; "" for a spare, None if it does not answer."""
        try:
            return str(await self._actors.call(name, "role", timeout_s=QUERY_S))
        except ActorTrouble:
            return None
