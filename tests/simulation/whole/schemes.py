"""Faults of several steps: two controllers at a time, lost replies, the loss of the last replica in sync.

Called by the nemesis. A plan names the schemes that a profile uses; each is a method of :class:`Schemes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raylog.actors.naming import replica_name
from raylog.base.ids import TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.partition import PartitionState
from tests.simulation.whole.cluster import Actor
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.whole.plan import SINGLE, UNCLEAN

if TYPE_CHECKING:
    from tests.simulation.whole.nemesis import Nemesis
    from tests.simulation.whole.world import World

LAST_SYNC_S: Final = 3.0
"""Time, beyond session timeout and lag limit, until the ISR has shrunk to the one replica that runs."""


class Schemes:
    """The schemes of one world."""

    def __init__(self, world: World, nemesis: Nemesis) -> None:
        """No fault yet."""
        self._world = world
        self._nemesis = nemesis
        self._scheduler = world.scheduler
        self._network = world.network
        self._cluster = world.cluster
        self._waiting: set[str] = set()
        """Topics with unclean elections whose followers are paused, and whose leader has to be lost."""

    def split(self) -> None:
        """Split the network in two, with clients on both sides; Ray gives up the controller's side now and then."""
        hosts = self._shuffled(self._cluster.hosts)
        clients = self._shuffled(self._world.client_hosts)
        smaller = max(1, (len(hosts) - 1) // 2)
        one_side, other_side = [*hosts[:smaller], *clients[:1]], [*hosts[smaller:], *clients[1:]]
        self._world.log("nemesis", f"{one_side} and {other_side} cannot reach each other")
        for_s = self._scheduler.between(2.0, 14.0)
        for here in one_side:
            for there in other_side:
                self._nemesis.block([(here, there), (there, here)], for_s)
        host = self._controller_host()
        if host in one_side:
            self._scheduler.after(self._scheduler.between(0.1, 1.5), self.give_up, host, for_s)

    def lose_contact(self) -> None:
        """Ray takes a node for lost whose processes and network are intact: actors get successors beside themselves."""
        host = self._controller_host()
        if host is not None:
            self.give_up(host, self._scheduler.between(1.0, 6.0))

    def depose_paused(self) -> None:
        """Pause the controller until a successor leads; it continues with its connections and requests of before."""
        process = self._cluster.actors["controller"].process
        if process is not None:
            process.pause()
            self.give_up(process.host, self._scheduler.between(3.0, 8.0))
            self._scheduler.after(self._scheduler.between(2.0, 6.0), process.resume)

    def strand_broker(self) -> None:
        """Cut the controller off from the other voters, and pause its neighbour: the broker's session ends, unnoticed.

        Nothing is committed, so no connection is closed: the broker goes on with one whose session is over.
        """
        host = self._controller_host()
        brokers = [actor.process for actor in self._cluster.named("broker-")]
        broker = next((process for process in brokers if process is not None and process.host == host), None)
        if host is None or broker is None:
            return
        self._world.log("nemesis", f"{host} cannot reach the other voters, and {broker.name} hangs")
        session_s = int(self._world.plan.config["broker.session.timeout.ms"]) / 1000
        paused_s = session_s + self._scheduler.between(0.5, 1.5)
        for other in self._cluster.hosts:
            if other != host:
                self._nemesis.block([(host, other), (other, host)], paused_s + 2 * session_s + 1.0)
        broker.pause()
        self._scheduler.after(paused_s, broker.resume)

    def give_up(self, host: str, for_s: float) -> None:
        """Ray takes a node for lost, for a time, and starts its actors elsewhere."""
        if not self._nemesis.is_active:
            return
        self._world.log("nemesis", f"Ray gives {host} up")
        self._cluster.lose_node(host)
        self._scheduler.after(for_s, self._cluster.find_node, host)

    def _controller_host(self) -> str | None:
        process = self._cluster.actors["controller"].process
        return None if process is None else process.host

    def lose_replies(self) -> None:
        """Delay a node's replies to clients, then kill its replicas: they appended and never replied."""
        hosts = self._cluster.hosts
        host = hosts[int(self._scheduler.random.random() * len(hosts))]
        self._world.log("nemesis", f"{host} answers clients late, then its replicas are killed")
        for client in self._world.client_hosts:
            self._network.slow[(host, client)] = 1.5
        self._scheduler.after(self._scheduler.between(0.3, 1.2), self._kill_with_replies, host)

    def _kill_with_replies(self, host: str) -> None:
        for client in self._world.client_hosts:
            self._network.slow.pop((host, client), None)
        for actor in self._nemesis.replicas():
            process = actor.process
            if process is not None and process.host == host:
                self._network.reset(process)
                process.kill("killed by the nemesis, with its replies")

    def lose_last_man(self, host: str) -> None:
        """Let the leaders on a node become the last replicas in sync; lose it, and let the others run again."""
        self._world.log("nemesis", f"what {host} leads has no followers")
        led = {self._partition_of(actor) for actor in self._running() if self._leads(actor, host)}
        paused = [actor.process for actor in self._running() if self._partition_of(actor) in led]
        followers = [process for process in paused if process is not None and process.host != host]
        for process in followers:
            process.pause()
        config = self._world.plan.config
        silence_ms = int(config["broker.session.timeout.ms"]) + int(config["replica.lag.time.max.ms"])
        self._scheduler.after(silence_ms / 1000 + LAST_SYNC_S, self._lose_it, host, followers)

    def _running(self) -> list[Actor]:
        return [actor for actor in self._nemesis.replicas() if actor.process is not None and actor.serves]

    def _partition_of(self, actor: Actor) -> object:
        spec = actor.server.spec
        return spec.topic_id, spec.partition

    def _leads(self, actor: Actor, host: str) -> bool:
        """Whether a replica on this node leads, and has all followers in sync."""
        if actor.process is None or actor.process.host != host:
            return False
        status = actor.server.status()
        return bool(status["role"] == "leader" and len(status["isr"]) == actor.server.spec.replication_factor)

    def _lose_it(self, host: str, paused: list[SimProcess]) -> None:
        if self._nemesis.is_active:
            self._nemesis.lose(host)
        for process in paused:
            process.resume()

    def lose_single(self) -> None:
        """Keep the node of a topic's only replica without power for longer than any delivery may take."""
        singles = [actor for actor in self._running() if actor.name.startswith(f"replica:{SINGLE}-")]
        if singles and singles[0].process is not None:
            self._nemesis.lose_power(singles[0].process.host, self._scheduler.between(16.0, 20.0))

    def lose_unclean(self, topic: str = UNCLEAN) -> None:
        """Pause the followers of a topic with unclean elections until its leader commits alone; then lose the leader.

        One of the followers leads, and what was committed meanwhile is lost.
        """
        replicas = [actor for actor in self._running() if actor.name.startswith(f"replica:{topic}-")]
        leaders = [actor for actor in replicas if actor.server.status()["role"] == "leader"]
        if not leaders or leaders[0].process is None or topic in self._waiting:
            return
        host = leaders[0].process.host
        self._world.log("nemesis", f"the followers of {topic} are paused")
        followers = [actor.process for actor in replicas if actor.process is not None and actor.process.host != host]
        for process in followers:
            process.pause()
        self._waiting.add(topic)
        config = self._world.plan.config
        silence_ms = int(config["broker.session.timeout.ms"]) + int(config["replica.lag.time.max.ms"])
        self._scheduler.after(silence_ms / 1000 + LAST_SYNC_S, self._lose_leader, topic, host, followers)

    def _lose_leader(self, topic: str, host: str, paused: list[SimProcess]) -> None:
        if self._network.down:
            self._scheduler.after(1.0, self._lose_leader, topic, host, paused)
            return
        self._waiting.discard(topic)
        self._nemesis.lose_power(host, self._scheduler.between(6.0, 12.0))
        for process in paused:
            process.resume()

    def strike_place(self) -> None:
        """Kill or pause a client of transactions, or start another one of its transactional id."""
        if self._world.transactions is not None:
            self._world.transactions.strike_place()

    def kill_transaction_coordinator(self) -> None:
        """Kill a transaction coordinator."""
        if self._world.transactions is not None:
            self._world.transactions.kill_coordinator()

    def pause_transaction_coordinator(self) -> None:
        """Let a transaction coordinator hang for a while."""
        if self._world.transactions is not None:
            self._world.transactions.pause_coordinator()

    def strike_scheduler(self) -> None:
        """Kill or pause the leader of the delayed records, or one of their targets."""
        self._strike_leader("replica:__scheduled-", "replica:__scheduled-", "replica:later-")

    def strike_forwarder(self) -> None:
        """Kill or pause a leader that forwards records, the keeper of what it has decided, or one of its targets."""
        self._strike_leader(
            "replica:fleeting-", "replica:fleeting-", "replica:__forwarding-", "replica:letters-", "replica:p"
        )

    def _strike_leader(self, *prefixes: str) -> None:
        prefix = prefixes[int(self._scheduler.random.random() * len(prefixes))]
        replicas = [actor for actor in self._running() if actor.name.startswith(prefix)]
        for actor in replicas:
            if actor.process is not None and actor.server.status()["role"] == "leader":
                self._world.log("nemesis", f"{actor.name} leads, and is struck")
                if self._scheduler.chance(0.7):
                    actor.process.kill("killed by the nemesis")
                else:
                    actor.process.pause()
                    self._scheduler.after(self._scheduler.between(0.5, 6.0), actor.process.resume)
                return

    def strike_queue(self) -> None:
        """Kill or pause the leader of a queue, of the states of queues, or of dead letters."""
        prefixes = ("replica:jobs-", "replica:jobs-", "replica:__share_state-", "replica:dead-jobs-")
        self._strike_leader(prefixes[int(self._scheduler.random.random() * len(prefixes))])

    def kill_of_sleeper(self) -> None:
        """Kill the controller or the broker of a partition that sleeps, so that it fails over in its sleep."""
        sleepers = self._sleepers()
        if sleepers:
            state = sleepers[int(self._scheduler.random.random() * len(sleepers))]
            self.strike(state.leader, "controller" if self._scheduler.chance(0.3) else f"broker-{state.leader}")

    def strike_sleeper(self) -> None:
        """Cut the power of a node whose broker leads partitions that sleep."""
        sleepers = self._sleepers()
        if sleepers:
            state = sleepers[int(self._scheduler.random.random() * len(sleepers))]
            self._nemesis.lose_power(self._cluster.host(state.leader), self._scheduler.between(0.5, 8.0))

    def strike(self, broker: int, name: str) -> None:
        """Kill one actor now."""
        actor = self._cluster.actors.get(name)
        if actor is not None and actor.process is not None:
            self._world.log("nemesis", f"{name} is killed while a partition of broker {broker} changes its sleep")
            actor.process.kill("killed by the nemesis")

    def _image(self) -> MetadataImage:
        controller = self._cluster.controller()
        runner = None if controller is None else controller._runner
        return MetadataImage() if runner is None else runner.machine.image

    def _sleepers(self) -> list[PartitionState]:
        return [state for state in self._image().partitions() if state.asleep is not None]

    def _state(self, at: TopicPartition) -> PartitionState | None:
        return self._image().partition(at)

    def transition(self, at: TopicPartition) -> None:
        """A partition has just fallen asleep or begun to wake: often something of it dies in the next moments."""
        state = self._state(at)
        if state is None or not self._nemesis.is_active or not self._scheduler.chance(0.25):
            return
        broker = state.replicas[int(self._scheduler.random.random() * len(state.replicas))]
        replica = replica_name(at.topic, at.partition, broker, state.topic_id)
        names = [replica, replica, f"broker-{broker}", "controller"]
        name = names[int(self._scheduler.random.random() * len(names))]
        self._scheduler.after(self._scheduler.between(0.0, 0.6), self.strike, broker, name)

    def _shuffled(self, hosts: list[str]) -> list[str]:
        mixed = list(hosts)
        self._scheduler.random.shuffle(mixed)
        return mixed
