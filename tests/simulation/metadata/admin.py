"""Administrators of the metadata world: one request at a time, each on topics of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raylog.base.ids import BrokerId
from raylog.core.controller.events import ControllerRequest
from raylog.protocol.admin import (
    AlterClusterConfigRequest,
    AlterPartitionReassignmentsRequest,
    AlterTopicConfigRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectedPartition,
    ElectLeadersRequest,
    ReassignablePartition,
    ResumeBrokerRequest,
    StopBrokerRequest,
)
from raylog.protocol.controller import AllocateProducerIdsRequest, EnsureCoordinatorRequest
from tests.simulation.metadata.facts import Topic
from tests.simulation.quorum.disk import Broken

if TYPE_CHECKING:
    from tests.simulation.metadata.world import MetadataWorld

REQUEST_MS = 1_500
"""How long an administrator waits for an answer."""
_SETTINGS = {
    "a0": ("group.max.size", "broker.session.timeout.ms"),
    "a1": ("group.max.groups", "transactional.id.max"),
}
"""Of the cluster, by administrators: the last one counts, and none alters what another one does."""
_RETENTIONS = ("1000", "2000", "3000")


class Administrator:
    """Sends requests to a leading controller, or to one that has been replaced without noticing."""

    def __init__(self, world: MetadataWorld, name: str) -> None:
        self.world, self.name = world, name
        self.stopping = False
        self._names = 0
        self._open = 0
        """The request in flight; answers to earlier ones are ignored."""
        self._sent = 0
        self._next()

    def _next(self) -> None:
        if not self.stopping:
            self.world.after(self.world.random.randint(5, 120), self._turn)

    def _turn(self) -> None:
        world = self.world
        mine = [name for name in world.facts.topics if name.startswith(self.name)]
        if not world.leading():
            self._next()
            return
        kinds: list[Callable[[str], None]] = [self._create, self._ids, self._coordinator, self._stop, self._alter]
        if mine:
            kinds += [self._grow, self._configure, self._configure, self._move, self._move, self._delete, self._elect]
        if len(mine) > 3:
            kinds += [self._delete] * 5
        world.random.choice(kinds)(world.random.choice(mine) if mine else "")

    def _send(
        self,
        message: ControllerRequest,
        done: Callable[[Any], None],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """``done`` takes the result; it is not called when no answer arrives in time."""
        world = self.world
        self._sent += 1
        number = self._open = self._sent

        def answered(code: int, result: Any) -> None:
            if self._open != number:
                return
            self._open = 0
            if code == 0:
                world.facts.acknowledged += 1
                done(result)
                world.facts.hold_in(world.image, f"what is committed when {self.name} is answered")
            else:
                refused()
            self._next()

        def give_up() -> None:
            if self._open == number:
                self._open = 0
                self._next()

        world.random.choice(world.leading()).request(message, answered)
        world.after(REQUEST_MS, give_up)

    def _create(self, _name: str) -> None:
        self._names += 1
        name, facts = f"{self.name}-{self._names}", self.world.facts
        count, factor = self.world.random.randint(1, 3), self.world.random.randint(1, 3)
        unclean = self.world.random.choice(["true", "false"])
        config = {"unclean.leader.election.enable": unclean, "min.insync.replicas": str(min(2, factor))}

        def done(result: Any) -> None:
            facts.topics[name] = Topic(result[0], count, dict(config))

        self._send(
            CreateTopicRequest(
                topic=name,
                num_partitions=count,
                replication_factor=factor,
                configs=config,
                assignments=None,
                validate_only=False,
                timeout_ms=0,
            ),
            done,
            lambda: facts.deleted.add(name),
        )

    def _delete(self, name: str) -> None:
        facts = self.world.facts
        known = facts.topics.pop(name)

        def restore() -> None:
            facts.topics[name] = known

        self._send(
            DeleteTopicRequest(topic=name),
            lambda _: facts.deleted.add(name),
            restore,
        )

    def _grow(self, name: str) -> None:
        known = self.world.facts.topics[name]
        image = self.world.image.topics.get(name)
        total = (known.partitions if image is None else len(image.partitions)) + 1

        def done(_: Any) -> None:
            known.partitions = total

        self._send(
            CreatePartitionsRequest(topic=name, count=total, assignments=None),
            done,
        )

    def _configure(self, name: str) -> None:
        known = self.world.facts.topics[name]
        key, value = "retention.ms", self.world.random.choice(_RETENTIONS)
        before = known.config.get(key)
        known.config[key] = None

        def done(_: Any) -> None:
            known.config[key] = value

        def refused() -> None:
            known.config[key] = before

        self._send(
            AlterTopicConfigRequest(topic=name, set={key: value}, delete=()),
            done,
            refused,
        )

    def _alter(self, _name: str) -> None:
        """Alter some of the cluster's settings, or end their alteration; all in one request, or none."""
        draw, known = self.world.random, self.world.facts.settings
        keys = draw.sample(_SETTINGS[self.name], draw.randint(1, len(_SETTINGS[self.name])))
        wanted = {key: draw.choice(("", "3000", "4000", "5000")) for key in keys}
        before = {key: known.get(key, "") for key in keys}
        known.update(dict.fromkeys(keys))

        self._send(
            AlterClusterConfigRequest(
                set={key: value for key, value in wanted.items() if value},
                delete=[key for key, value in wanted.items() if not value],
            ),
            lambda _: known.update(wanted),
            lambda: known.update(before),
        )

    def _move(self, name: str) -> None:
        world = self.world
        known = world.facts.topics[name]
        place = world.random.randrange(known.partitions)
        some = world.random.sample(world.numbers, min(len(world.numbers), world.random.randint(1, 3)))
        target = tuple(BrokerId(number) for number in some)
        before = known.targets.get(place)
        known.targets[place] = None

        def done(_: Any) -> None:
            known.targets[place] = target

        def refused() -> None:
            known.targets[place] = before

        self._send(
            AlterPartitionReassignmentsRequest([ReassignablePartition(name, place, target)], None),
            done,
            refused,
        )

    def _elect(self, name: str) -> None:
        unclean = self.world.random.random() < 0.3
        state = self.world.image.topics.get(name)
        if unclean and state is not None:
            for found in state.partitions:
                self.world.may_be_unclean.add(found.partition)
        self._send(
            ElectLeadersRequest([ElectedPartition(name, 0)], unclean),
            lambda _: None,
        )

    def _stop(self, _name: str) -> None:
        """Stop a broker, or resume one that is stopped."""
        world = self.world
        broker = BrokerId(world.random.choice(world.numbers))
        stopped = [known.broker for known in world.image.brokers.values() if known.stopped]
        if stopped:
            self.resume(stopped[0])
            return
        force = world.random.random() < 0.3
        if force:
            world.forced.add(int(broker))
        self._send(
            StopBrokerRequest(broker=broker, force=force),
            lambda _: None,
        )

    def resume(self, broker: BrokerId) -> None:
        """Resume a stopped broker."""
        self._send(
            ResumeBrokerRequest(broker=broker),
            lambda _: None,
        )

    def _ids(self, _name: str) -> None:
        facts = self.world.facts
        count = self.world.random.choice([1, 10, 1000])

        def done(result: Any) -> None:
            if result[1] != count:
                raise Broken(f"{count} producer ids were requested, and {result} came")
            facts.block(result[0], result[1])

        self._send(AllocateProducerIdsRequest(count=count), done)

    def _coordinator(self, _name: str) -> None:
        self._send(
            EnsureCoordinatorRequest(kind="group", index=0),
            lambda _: None,
        )
