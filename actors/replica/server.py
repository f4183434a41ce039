"""The shell of one partition replica: its endpoint, its links to the controller and the leader, its clock.

Runs in a ``Replica`` actor (``ray_replica.py``). It passes requests, replies and ticks in arrival order to the runner
(``runner.py``), which feeds them to the state machine as events and carries out the effects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from raylog.actors import clock
from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.beats.beat_memory import beats_of
from raylog.actors.controller_link import ControllerLink, FindController
from raylog.actors.flusher import Flusher
from raylog.actors.listening import KEPT_FILE, open_endpoint
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.naming import COORDINATED_TOPICS
from raylog.actors.permissions import NO_TOPIC, NamedTopic, permissions
from raylog.actors.replica.beating import Beating
from raylog.actors.replica.bodies import BodyOpener
from raylog.actors.replica.cleaner import Cleaner
from raylog.actors.replica.damage import give_up
from raylog.actors.replica.dozing import Dozing, Parts, Rest
from raylog.actors.replica.follower_link import FollowerLink
from raylog.actors.replica.leader_roles import LeaderRoles, roles_of
from raylog.actors.replica.opening import OpenedLog, forget_cut, note_boot, open_in_thread
from raylog.actors.replica.ports import ReplicaPorts
from raylog.actors.replica.runner import ReplicaRunner
from raylog.actors.replica.scrubber import Scrubber
from raylog.actors.replica.status import has_reported, heartbeat, replica_metrics, replica_status
from raylog.actors.replica.verifying import TransactionVerifier
from raylog.actors.replica.watermark_keeper import WatermarkKeeper
from raylog.actors.roles.local import LocalRequest
from raylog.actors.settings import (
    log_settings,
    paces_of,
    replication_settings,
    session_heartbeat_s,
    vouching_pace,
)
from raylog.actors.timer import TickTimer
from raylog.actors.transport import listen
from raylog.base.errors import NotLeaderOrFollower, RaylogError, UnknownTopicId, UnknownTopicOrPartition
from raylog.base.ids import NO_INCARNATION, Incarnation, TopicPartition
from raylog.core.configuration.config import TopicConfig
from raylog.core.partition import PartitionState, SleepPoint
from raylog.core.queues.origins import OF as RETRY_OF
from raylog.core.replication import events as ev
from raylog.core.replication.replica import ReplicationSettings
from raylog.protocol.broker import METADATA, MetadataRequest
from raylog.protocol.controller import (
    ALTER_PARTITION,
    REGISTER_REPLICA,
    RESIGN_LEADER,
    SLEEP_PARTITION,
    AlterPartitionRequest,
    IsrMember,
    RegisterReplicaRequest,
    ResignLeaderRequest,
    SleepPartitionRequest,
)
from raylog.protocol.notifications import REPLICA_SESSION, FallAsleep, PartitionStateUpdate, StopReplica
from raylog.protocol.replica import REPLICA, REPLICA_FETCH, ProduceRequest, ReplicaMetricsRequest, ReplicaStatusRequest
from raylog.rpc import Connection, Permissions, Reply, Request
from raylog.storage.batch.header import claims_of, end_offset, is_plain

logger = logging.getLogger(__name__)

REGISTER_TIMEOUT_S: Final = 5.0
PROPOSE_TIMEOUT_S: Final = 5.0
LINK_BROKEN: Final = 1001
REMOVED_PAUSE_S: Final = 1.0
OWN_TASKS: Final = 2
"""Tasks of an idle replica: its ticks, and the one that checks whether it is idle."""


class ReplicaServer:
    """One partition replica, from recovery to shutdown."""

    def __init__(
        self,
        spec: ReplicaSpec,
        *,
        find_controller: FindController,
        on_fatal: Callable[[str], None],
        rest: Rest | None = None,
    ) -> None:
        """``on_fatal`` must end the process: the disk has failed, or a newer incarnation of this replica is registered.

        ``rest`` stops the process while nothing happens; None = it must not be stopped.
        """
        self.spec = spec
        self.partition = TopicPartition(spec.topic, spec.partition)
        self._on_fatal = on_fatal
        self._rest = rest
        self._settings = self._settings_of(spec)
        self._incarnation = NO_INCARNATION
        self._opened: OpenedLog | None = None
        self._runner: ReplicaRunner | None = None
        self._keeper: WatermarkKeeper | None = None
        self._cleaner: Cleaner | None = None
        self._scrubber: Scrubber | None = None
        self._opener: BodyOpener | None = None
        self._flusher: Flusher | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._pace = vouching_pace(spec.cluster_config)
        self._beating = Beating(spec.topic_id, spec.partition, self._pace)
        self._ticks = TickTimer(self._tick, self._pace.beat_ms)
        self._server = listen(self._on_request, spec, self._permissions())
        self.endpoint: tuple[str, int] = ("", 0)
        self._link = ControllerLink(
            find_controller,
            name=str(self.partition),
            secret=spec.secret,
            register=self._register,
            handler=self._on_controller_message,
            heartbeat_s=session_heartbeat_s(spec.cluster_config),
            on_superseded=on_fatal,
            report=lambda: heartbeat(self._runner),
        )
        self._roles = self._new_roles(on_fatal)
        self._verifier = self._new_verifier()
        self._leader = FollowerLink(
            topic_id=spec.topic_id,
            partition=spec.partition,
            broker=spec.broker,
            secret=spec.secret,
            on_answer=self._on_fetch_answer,
            on_failure=self._on_fetch_failure,
            fetch_timeout_s=self._settings.fetch_timeout_ms / 1000,
        )

    def _new_roles(self, on_fatal: Callable[[str], None]) -> LeaderRoles:
        return LeaderRoles(
            lambda: self.spec,
            roles_of(self.spec.topic),
            log=lambda: self._running().log,
            trusted_ms=lambda: self._running().clock.trusted_ms(),
            receive=self._on_local_request,
            controller=self._link,
            on_failed=on_fatal,
        )

    def _new_verifier(self) -> TransactionVerifier:
        return TransactionVerifier(
            self.spec.topic_id,
            self.spec.partition,
            fetch_metadata=self._metadata_of,
            secret=self.spec.secret,
            answer=lambda number, error: self._running().transaction_confirmed(number, error),
        )

    def _permissions(self) -> Permissions:
        spec = self.spec
        is_internal = spec.topic in COORDINATED_TOPICS
        allowed = permissions(REPLICA, is_internal=is_internal, named=self._named, claims_of=claims_of)
        return replace(
            allowed,
            place=(spec.topic_id, spec.partition),
            message_bytes=lambda _: TopicConfig.from_dict(self.spec.topic_config).max_message_bytes,
        )

    def _named(self, name: str) -> NamedTopic:
        spec = self.spec
        return NamedTopic(spec.topic_id, spec.topic_config.get(RETRY_OF, "")) if name == spec.topic else NO_TOPIC

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Recover the log, open the endpoint, and begin to register with the controller, which may come later.

        A start that fails, or is cancelled, leaves nothing open.
        """
        try:
            await self._start()
        except BaseException:  # also a cancellation
            await self.stop()
            raise

    async def _start(self) -> None:
        config, flush = log_settings(self.spec)
        loop = asyncio.get_running_loop()
        opened = self._opened = await open_in_thread(self.spec, config, flush)
        log, name = opened.log, str(self.partition)
        self._keeper = WatermarkKeeper(self.partition, log.folder, log.log_end_offset)
        counters, directory, paces = ReplicaCounters(), self.spec.data_directory, paces_of(self.spec.cluster_config)
        cleaner = self._cleaner = Cleaner(log, directory, name, paces.cleaner, counters, self._on_fatal)
        scrubber = self._scrubber = Scrubber(log, directory, name, paces.scrub, counters)
        self._flusher = Flusher(
            log,
            on_synced=lambda _: self._running().synced(),
            on_failed=lambda error: self._running().sync_failed(error),
            name=name,
            durations=counters.flush,
        )
        self._runner = ReplicaRunner(
            self.partition,
            log,
            clock=clock,
            sync=self._flusher,
            keeper=self._keeper,
            flush=flush,
            counters=counters,
            cleaner=cleaner,
            scrubber=scrubber,
            retention_check_ms=paces.retention_check_ms,
            ports=ReplicaPorts(
                send_fetch=self._send_fetch,
                propose_isr=lambda effect: self._spawn(self._propose(effect), "isr proposal"),
                propose_sleep=lambda effect: self._spawn(self._propose_sleep(effect), "sleep proposal"),
                resign=lambda effect: self._spawn(self._resign(effect), "resignation"),
                rebuild=lambda effect: give_up(self._running().damage, log.folder, effect, self._on_fatal),
                role_changed=self._role_changed,
                verify=lambda question: self._spawn(self._verifier.query(question), "verification"),
                is_busy=lambda: self._roles.is_busy,
                tick_within=self._ticks.hasten,
                needed_from=lambda: self._roles.needed_from,
                soon=asyncio.get_running_loop().call_soon,
                fatal=self._on_fatal,
            ),
        )
        self._runner.damage.before = opened.damage
        self._opener = BodyOpener(log, name, self._dispatch, lambda: self._leads)
        self._flusher.start()
        self.endpoint = await open_endpoint(
            self._server, self.spec, name=name, config=self.spec.cluster_config, kept=log.folder / KEPT_FILE
        )
        self._beating.name = await loop.run_in_executor(None, beats_of, self.spec.data_directory)
        self._link.start()
        self._spawn(self._ticks.run(), "ticks")
        if self._rest is not None:
            parts = self._parts(lambda: cleaner.is_busy or scrubber.is_busy or self._is_busy)
            self._spawn(Dozing(self._rest, parts, self._pace.beat_ms).run(), "dozing")

    def _parts(self, is_busy: Callable[[], bool]) -> Parts:
        """Return the parts that have to be idle before a doze."""
        assert self._flusher is not None
        assert self._keeper is not None
        return Parts(
            runner=self._running(),
            flusher=self._flusher,
            server=self._server,
            leader=self._leader,
            controller=self._link,
            beating=self._beating,
            report=self._report,
            keeper=self._keeper,
            is_busy=is_busy,
        )

    async def stop(self) -> None:
        """Stop serving, sync and close the log, release the folder. Idempotent."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name=f"{self.partition} stop")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        await self._roles.stop()
        await self._link.stop()
        await self._server.close()
        if self._opener is not None:
            self._opener.close()
        await self._leader.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._verifier.close()
        self._beating.close()
        if self._rest is not None:
            self._rest.close()
        if self._cleaner is not None:
            await self._cleaner.stop()
        if self._scrubber is not None:
            await self._scrubber.stop()
        if self._flusher is not None:
            await self._flusher.stop()
        if self._runner is not None and self._keeper is not None:
            self._runner.end()
            machine = self._runner.machine
            await self._keeper.stop(None if machine is None else machine.high_watermark)
        if self._opened is not None:
            opened, self._opened = self._opened, None
            try:
                opened.log.close()
            except RaylogError as error:
                logger.warning("%s was not closed cleanly, the next start scans it: %s", self.partition, error)
            finally:
                opened.lock.release()

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called, or the topic was deleted: it serves no more."""
        return self._stopping is not None

    def _fall_silent(self, reason: str) -> None:
        """Stop everything but the process: the topic is deleted, and the broker ends this actor when it learns that.

        If the process ended here, Ray would restart it again and again.
        """
        if self._stopping is None:
            logger.info("%s on broker %d stops: %s", self.partition, self.spec.broker, reason)
            self._stopping = asyncio.create_task(self._stop(), name=f"{self.partition} stop")

    def reconfigure(self, spec: ReplicaSpec) -> None:
        """Apply the configuration of topic and cluster, the replication factor and the catch-up rate of ``spec``.

        A spec of older metadata is ignored: calls through Ray may overtake each other, and arrive long after their
        caller has given up. Raises DiskFull and StorageIoError if a relaxed flush policy cannot be noted on disk;
        nothing is applied then.
        """
        if spec.as_of < self.spec.as_of:
            return
        changed = replace(
            self.spec,
            topic_config=dict(spec.topic_config),
            cluster_config=dict(spec.cluster_config),
            replication_factor=spec.replication_factor,
            catch_up_bytes_per_s=spec.catch_up_bytes_per_s,
            as_of=spec.as_of,
        )
        if changed == replace(self.spec, as_of=spec.as_of):
            self.spec = changed
            return
        log, flush = log_settings(changed)
        if not flush.before_acknowledging and not self._reports_loss:
            note_boot(changed, syncs_first=False)  # before the first record that a crash of the host may lose
        self.spec, self._settings = changed, self._settings_of(changed)
        if self._runner is not None:
            self._runner.reconfigure(log, flush, self._settings, paces_of(changed.cluster_config))
            self._ticks.hasten()
            self._roles.reconfigured()

    @property
    def _reports_loss(self) -> bool:
        """Whether the controller has still to learn that unsynced records may be missing."""
        return self._incarnation == NO_INCARNATION and self._opened is not None and self._opened.unsynced_lost

    @property
    def leader_epoch(self) -> int | None:
        """The leader epoch of the partition's state; None before the controller has sent one."""
        machine = None if self._runner is None else self._runner.machine
        return None if machine is None or machine.state is None else machine.leader_epoch

    def status(self) -> dict[str, object]:
        """Return the status of this replica for operators."""
        found = replica_status(self.spec, self._running(), self._settings)
        return {**found, "incarnation": self._incarnation, "controller_connected": self._link.is_connected}

    @property
    def _is_busy(self) -> bool:
        if self._stopping is not None or len(self._tasks) > OWN_TASKS:
            return True
        is_opening = self._opener is not None and self._opener.is_busy
        return is_opening or self._roles.is_busy or self._verifier.is_busy

    def _metrics(self, runner: ReplicaRunner) -> dict[str, object]:
        return replica_metrics(self.spec, runner, self._server, self._roles.figures())

    def _report(self) -> dict[str, object]:
        return {"status": self.status(), "metrics": self._metrics(self._running())}

    def _running(self) -> ReplicaRunner:
        if self._runner is None:
            raise NotLeaderOrFollower(f"{self.partition} on broker {self.spec.broker} is still recovering its log.")
        return self._runner

    # ------------------------------------------------------------ clients and followers

    def _on_request(self, request: Request) -> None:
        runner = self._runner or self._running()
        args = REPLICA.read_request(request.method, request.args)
        kind = type(args)
        if kind is ReplicaStatusRequest:
            request.reply(self.status())
            return
        if kind is ReplicaMetricsRequest:
            request.reply(self._metrics(runner))
            return
        if args.partition != self.spec.partition or args.topic_id != self.spec.topic_id:
            raise UnknownTopicId(f"This endpoint serves {self.partition} of another topic id; refresh the metadata.")
        if runner.machine is None:
            raise NotLeaderOrFollower(f"{self.partition} on broker {self.spec.broker} is starting.")
        has_plain = False
        if kind is ProduceRequest:  # its header is parsed once, for all decisions before the append
            has_plain, opener = is_plain(request.payload), self._opener
            may_wait = opener is not None and (not has_plain or opener.lines or runner.log.config.rewriting is not None)
            if may_wait and opener is not None and opener.takes(request, args):
                return
        if not runner.receive(request, args, has_plain):
            self._roles.receive(request, args)

    @property
    def _leads(self) -> bool:
        machine = self._running().machine
        return machine is not None and machine.role == "leader"

    def _dispatch(self, request: Request, args: ProduceRequest) -> None:
        self._running().receive(request, args)

    def _on_local_request(self, request: LocalRequest) -> None:
        runner = self._running()
        if runner.machine is None or self._stopping is not None:
            raise NotLeaderOrFollower(f"{self.partition} on broker {self.spec.broker} does not serve.")
        runner.receive(request, request.args)

    # ------------------------------------------------------------ the leader we follow

    def _send_fetch(self, effect: ev.SendFetch) -> None:
        machine = None if self._runner is None else self._runner.machine
        state = None if machine is None else machine.state
        place = None if state is None else state.place(effect.leader)
        endpoint = None if place is None or place.port == 0 else (place.host, place.port)
        self._leader.send(effect, endpoint)

    def _on_fetch_answer(self, fetch: ev.SendFetch, reply: Reply) -> None:
        try:
            answer = REPLICA_FETCH.read_reply(reply.args)
            payload = b"" if answer.has_producers else reply.payload
            end = end_offset(payload, fetch.fetch_offset)
        except RaylogError as error:
            logger.warning("%s: the leader sent what is no answer to a fetch: %s", self.partition, error)
            self._on_fetch_failure(fetch, error.code, 0)
            return
        runner = self._runner or self._running()
        runner.fetch_answered(fetch.request, answer, reply.payload, end)

    def _on_fetch_failure(self, fetch: ev.SendFetch, code: int, log_start: int) -> None:
        self._running().fetch_failed(fetch.request, code, log_start)
        self._ticks.hasten(self._settings.fetch_retry_ms)  # the state machine fetches again then

    def _role_changed(self, effect: ev.RoleChanged) -> None:
        logger.info("%s: leader %d in epoch %d", self.partition, effect.leader, effect.leader_epoch)
        if effect.leading:
            self._leader.disconnect()
            self._roles.lead(effect.leader_epoch)
        else:
            self._roles.follow()
        runner = self._running()
        state = None if runner.machine is None else runner.machine.state
        if effect.leading and state is not None and state.unclean_leader_epoch == effect.leader_epoch:
            logger.warning(
                "%s: epoch %d began with an unclean election; acknowledged records from offset %d on may be missing",
                self.partition,
                effect.leader_epoch,
                runner.log.log_end_offset,
            )

    # ------------------------------------------------------------ controller

    async def _register(self, connection: Connection) -> None:
        runner, opened = self._running(), self._opened
        host, port = self.endpoint
        # Only the first registration of this incarnation reports a loss. If it were repeated to a restarted controller,
        # a replica that has filled its new log since would lose the leadership and its place in the ISR.
        log_lost = self._incarnation == NO_INCARNATION and opened is not None and opened.log_lost
        try:
            reply = await connection.call(
                REGISTER_REPLICA.name,
                RegisterReplicaRequest(
                    topic_id=self.spec.topic_id,
                    topic=self.spec.topic,
                    partition=self.spec.partition,
                    broker=self.spec.broker,
                    incarnation=self._incarnation,
                    host=host,
                    port=port,
                    log_lost=log_lost,
                    log_id=opened.log.log_id if opened is not None else "",
                    unsynced_lost=self._reports_loss,
                    end_cut=self._incarnation == NO_INCARNATION and opened is not None and opened.end_cut,
                ),
                timeout_s=REGISTER_TIMEOUT_S,
            )
        except UnknownTopicId as refusal:
            self._fall_silent(refusal.message)
            raise
        except (UnknownTopicOrPartition, NotLeaderOrFollower):
            # The partition sleeps, or a reassignment has removed this replica. Its broker ends this process, unless
            # the partition wakes, or the replica is added again, before; so try again, as another incarnation.
            await asyncio.sleep(REMOVED_PAUSE_S)
            raise
        registered = REGISTER_REPLICA.read_reply(reply.args)
        # After a restart by Ray, the spec is that of the actor's first start, and may be old.
        topic, cluster = registered.topic_config, registered.cluster_config
        self.reconfigure(replace(self.spec, topic_config=topic, cluster_config=cluster))
        if self._reports_loss:
            note_boot(self.spec, log_settings(self.spec)[1].before_acknowledging)
        if opened is not None and opened.log.recovered.end_cut and runner.machine is None:
            forget_cut(self.spec)
        if runner.machine is None:
            self._incarnation = Incarnation(registered.incarnation)
            runner.begin(self.spec.broker, self._incarnation, self._settings)
        self._beating.registered(self._incarnation, registered.controller_epoch)
        self._on_state(registered.incarnation, registered.state)

    def _on_controller_message(self, request: Request) -> None:
        match args := REPLICA_SESSION.read_request(request.method, request.args):
            case StopReplica():
                self._fall_silent(args.reason)
            case PartitionStateUpdate():
                self._on_state(args.incarnation, args.state)
            case FallAsleep():
                self._ticks.hasten()
                self._running().sleep_requested(args.idle_ms, for_stop=args.for_stop)

    def _on_state(self, incarnation: int, wire: Sequence[object]) -> None:
        self._ticks.hasten()
        self._running().state_received(incarnation, PartitionState.from_wire(wire))

    async def _propose(self, effect: ev.ProposeIsr) -> None:
        request = AlterPartitionRequest(
            topic_id=self.spec.topic_id,
            topic=self.spec.topic,
            partition=self.spec.partition,
            broker=self.spec.broker,
            incarnation=self._incarnation,
            leader_epoch=effect.leader_epoch,
            partition_epoch=effect.partition_epoch,
            isr=[IsrMember(broker, incarnation) for broker, incarnation in effect.isr],
            drops_eligible=effect.drops_eligible,
        )
        state: PartitionState | None = None
        try:
            reply = await self._link.call(ALTER_PARTITION.name, request, timeout_s=PROPOSE_TIMEOUT_S)
            code, state = 0, PartitionState.from_wire(ALTER_PARTITION.read_reply(reply.args).state)
        except RaylogError as error:
            code = error.code if error.is_remote else LINK_BROKEN
        self._ticks.hasten()
        self._running().isr_answered(effect.request, code, state)

    async def _propose_sleep(self, effect: ev.ProposeSleep) -> None:
        log = self._running().log
        point = SleepPoint(
            log_start_offset=effect.log_start_offset,
            end_offset=effect.end_offset,
            last_epoch=effect.last_epoch,
            oldest_ms=log.oldest_ms,
            size_bytes=log.size_bytes,
        )
        request = SleepPartitionRequest(
            topic_id=self.spec.topic_id,
            topic=self.spec.topic,
            partition=self.spec.partition,
            broker=self.spec.broker,
            incarnation=self._incarnation,
            leader_epoch=effect.leader_epoch,
            partition_epoch=effect.partition_epoch,
            point=point.to_row(),
        )
        state: PartitionState | None = None
        try:
            reply = await self._link.call(SLEEP_PARTITION.name, request, timeout_s=PROPOSE_TIMEOUT_S)
            code, state = 0, PartitionState.from_wire(SLEEP_PARTITION.read_reply(reply.args).state)
        except RaylogError as error:
            code = error.code if error.is_remote else LINK_BROKEN
            logger.debug("%s does not sleep: %s", self.partition, error)
        self._ticks.hasten()
        self._running().sleep_answered(effect.request, code, state)

    async def _resign(self, effect: ev.ResignLeadership) -> None:
        logger.warning("%s: %s; resigning leadership", self.partition, effect.reason)
        spec = self.spec
        resignation = ResignLeaderRequest(
            spec.topic_id, spec.topic, spec.partition, spec.broker, self._incarnation, effect.leader_epoch
        )
        try:
            await self._link.call(RESIGN_LEADER.name, resignation, timeout_s=PROPOSE_TIMEOUT_S)
        except RaylogError as error:
            logger.warning("%s: leadership is not resigned yet, trying again: %s", self.partition, error)

    async def _metadata_of(self, topics: list[str]) -> object:
        reply = await self._link.call(METADATA.name, MetadataRequest(topics), timeout_s=PROPOSE_TIMEOUT_S)
        return reply.args

    # ------------------------------------------------------------ time and tasks

    def _tick(self, latest_ms: int) -> int:
        runner = self._running()
        now = runner.tick()
        self._link.vouched_for(self._beating.beat(now, runner.disk_hanging_ms) and has_reported(runner))
        return runner.next_tick_ms(now, latest_ms)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"{self.partition} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._on_fatal(f"{self.partition}: {task.get_name()} failed: {task.exception()!r}")

    def _settings_of(self, spec: ReplicaSpec) -> ReplicationSettings:
        pace = spec.catch_up_bytes_per_s
        settings = replication_settings(spec.topic_config, spec.cluster_config, spec.replication_factor, pace)
        return settings if self._rest is not None else replace(settings, doze_after_ms=-1)
