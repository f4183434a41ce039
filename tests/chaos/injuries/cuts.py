"""Faults of the network part's nodes: links cut both ways or one way, slow, lossy or narrow; nodes lost.

The half of ``network.py`` that knows about faults and nothing about processes and sockets.
"""

import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import permutations, product
from typing import Any, Final

from tests.chaos.arena import Injected, NoTarget, Strike
from tests.chaos.sight import LOOK_S
from tests.chaos.wire import Links

TARGET_WITHIN_S: Final = 10.0
CUT_S: Final = (0.5, 8.0)
"""Around the session timeout: the controller never notices some cuts."""
SLOW_S: Final = (2.0, 6.0)
DOWN_S: Final = (0.5, 6.0)
PAUSE_S: Final = (1.0, 6.0)
CLIENTS: Final = "clients"
CONTROLLER: Final = "controller"


class Cuts:
    """Faults of links and nodes; the arena provides the addresses."""

    links: Links

    def __init__(self, topic: str, partitions: int, brokers: list[str]) -> None:
        """``brokers``: names of nodes."""
        self._topic = topic
        self._partitions = partitions
        self.brokers = brokers
        self._cut: set[tuple[str, str]] = set()
        self._stopped: set[str] = set()
        self.faults: Mapping[str, Strike] = {kind: partial(strike, self) for kind, strike in _FAULTS.items()}

    # Provided by the arena

    def address(self, name: str) -> str:
        """Return the address of a node."""
        raise NotImplementedError

    def status(self) -> dict[str, Any] | None:
        """Return the controller's view."""
        raise NotImplementedError

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a node's process."""
        raise NotImplementedError

    def take_down(self, name: str) -> None:
        """SIGKILL a node and keep it down."""
        raise NotImplementedError

    def let_up(self, name: str) -> None:
        """Allow it to start again."""
        raise NotImplementedError

    def replace_controller(self) -> Any:
        """Start a second controller; returns the first."""
        raise NotImplementedError

    def end_old(self, old: Any) -> Any:
        """End the first controller."""
        raise NotImplementedError

    def release(self) -> None:
        """Heal every link, continue and start every node."""
        self._mend(set(self._cut))
        for name in list(self._stopped):
            self._continue(name)
        for name in [*self.brokers, CONTROLLER]:
            self.let_up(name)

    # Links

    def cut(self, pairs: Iterable[tuple[str, str]], **link: Any) -> set[tuple[str, str]]:
        """Set the state of these directions between nodes; returns their addresses, for :meth:`_mend`."""
        between = {(self.address(source), self.address(target)) for source, target in pairs}
        self._cut |= between
        self.links.set(between, **(link or {"cut": True}))
        return between

    def _mend(self, between: set[tuple[str, str]]) -> None:
        self._cut -= between
        if between:
            self.links.set(between)

    def _for_a_while(
        self, what: str, pairs: Iterable[tuple[str, str]], rng: random.Random, span: tuple[float, float], **link: Any
    ) -> Injected:
        between = self.cut(pairs, **link)
        hold_s = rng.uniform(*span)
        shape = ", ".join(f"{name} {value:.3g}" for name, value in link.items()) or "cut"
        return Injected(what, hold_s=hold_s, heal=lambda: self._mend(between), note=f"{shape} for {hold_s:.1f} s")

    def _all(self) -> list[str]:
        return [*self.brokers, CONTROLLER, CLIENTS]

    def _others(self, name: str) -> list[str]:
        return [other for other in self._all() if other != name]

    def _peers(self, name: str) -> list[str]:
        return [other for other in self.brokers if other != name]

    def _leader(self, rng: random.Random) -> str:
        """Return the node that leads a partition."""
        deadline_s = time.monotonic() + TARGET_WITHIN_S
        while time.monotonic() < deadline_s:
            view = self.status()
            partitions = [] if view is None else view["topics"].get(self._topic, [])
            if partitions:
                leader = partitions[rng.randrange(len(partitions))]["leader"]
                if leader > 0:
                    return f"broker-{leader}"
            time.sleep(LOOK_S)
        raise NoTarget("no partition is led")

    # The faults

    def isolate_leader(self, rng: random.Random) -> Injected:
        """Cut a leader's node off from all others."""
        leader = self._leader(rng)
        return self._for_a_while(leader, both(leader, self._others(leader)), rng, CUT_S)

    def cut_leader_from_peers(self, rng: random.Random) -> Injected:
        """Cut a leader's node off from the other brokers, while controller and clients still reach it."""
        leader = self._leader(rng)
        return self._for_a_while(leader, both(leader, self._peers(leader)), rng, CUT_S)

    def cut_leader_from_controller(self, rng: random.Random) -> Injected:
        """Cut a leader's node off from the controller alone: it continues to lead, unaware of the cut."""
        leader = self._leader(rng)
        return self._for_a_while(leader, both(leader, [CONTROLLER]), rng, CUT_S)

    def cut_clients_from_leader(self, rng: random.Random) -> Injected:
        """Cut the clients off from a leader's node: the cluster itself is healthy."""
        leader = self._leader(rng)
        return self._for_a_while(leader, both(leader, [CLIENTS]), rng, CUT_S)

    def mute_leader(self, rng: random.Random) -> Injected:
        """One way: packets from a leader's node are lost, packets to it arrive."""
        leader = self._leader(rng)
        return self._for_a_while(leader, product([leader], self._others(leader)), rng, CUT_S)

    def deafen_leader(self, rng: random.Random) -> Injected:
        """One way: packets to a leader's node are lost, packets from it arrive."""
        leader = self._leader(rng)
        return self._for_a_while(leader, product(self._others(leader), [leader]), rng, CUT_S)

    def cut_one_way(self, rng: random.Random) -> Injected:
        """One way, between two brokers alone."""
        source, target = rng.sample(self.brokers, 2)
        return self._for_a_while(f"{source} to {target}", [(source, target)], rng, CUT_S)

    def isolate_controller(self, rng: random.Random) -> Injected:
        """Cut the controller off from all brokers: no votes, no heartbeats."""
        return self._for_a_while(CONTROLLER, both(CONTROLLER, self.brokers), rng, CUT_S)

    def cut_controller_from_majority(self, rng: random.Random) -> Injected:
        """Cut the controller off from two of three voters."""
        most = rng.sample(self.brokers, len(self.brokers) // 2 + 1)
        return self._for_a_while(f"{CONTROLLER} from {' and '.join(most)}", both(CONTROLLER, most), rng, CUT_S)

    def split_brokers(self, rng: random.Random) -> Injected:
        """Cut every link between brokers: each of them reaches the controller and the clients."""
        return self._for_a_while("all brokers", permutations(self.brokers, 2), rng, CUT_S)

    def swizzle(self, rng: random.Random) -> Injected:
        """Cut the directions between all nodes one by one, and heal them one by one in another order."""
        pairs = rng.sample(list(permutations([*self.brokers, CONTROLLER], 2)), 6)
        cuts = []
        for pair in pairs:
            cuts.append(self.cut([pair]))
            time.sleep(rng.uniform(0.05, 0.5))
        rng.shuffle(cuts)

        def heal() -> None:
            for between in cuts:
                self._mend(between)
                time.sleep(0.2)

        return Injected(", ".join(f"{pair} to {other}" for pair, other in pairs), hold_s=rng.uniform(0.2, 3), heal=heal)

    def slow_node(self, rng: random.Random) -> Injected:
        """Delay all packets from and to a node by 20 to 300 ms, with as much random jitter."""
        name = rng.choice(self.brokers)
        delay_s = rng.uniform(0.02, 0.3)
        pairs = both(name, self._others(name))
        return self._for_a_while(name, pairs, rng, SLOW_S, delay_s=delay_s, jitter_s=delay_s)

    def lossy_links(self, rng: random.Random) -> Injected:
        """Lose 2 to 20 % of all packets between all nodes."""
        pairs = permutations(self._all(), 2)
        return self._for_a_while("all links", pairs, rng, SLOW_S, loss=rng.uniform(0.02, 0.2))

    def narrow_node(self, rng: random.Random) -> Injected:
        """Limit a node to 20 to 200 KB a second in each direction."""
        name = rng.choice(self.brokers)
        rate = rng.uniform(20_000, 200_000)
        return self._for_a_while(name, both(name, self._others(name)), rng, SLOW_S, bytes_per_s=rate)

    def lose_node(self, rng: random.Random) -> Injected:
        """Power off a leader's node: from one moment to the next it sends no packet, not even a FIN or RST."""
        return self._lose(self._leader(rng), rng.uniform(*DOWN_S))

    def lose_controller(self, rng: random.Random) -> Injected:
        """Power off the controller's node."""
        return self._lose(CONTROLLER, rng.uniform(0.0, 2.0))

    def _lose(self, name: str, hold_s: float) -> Injected:
        heal = self.power_off(name)
        return Injected(name, hold_s=hold_s, heal=heal, note=f"down for {hold_s:.1f} s")

    def power_off(self, name: str) -> Callable[[], None]:
        """Cut a node's links, then SIGKILL it: its kernel's FIN and RST are lost. Returns how to bring it back."""
        between = self.cut(both(name, self._others(name)))
        self.take_down(name)

        def power_on() -> None:
            self._mend(between)
            self.let_up(name)

        return power_on

    def hang_node(self, rng: random.Random) -> Injected:
        """SIGSTOP a leader's node: its kernel still accepts packets, but no process answers."""
        leader = self._leader(rng)
        self._stopped.add(leader)
        self.signal(leader, signal.SIGSTOP)
        hold_s = rng.uniform(*PAUSE_S)
        return Injected(leader, hold_s=hold_s, heal=lambda: self._continue(leader), note=f"paused for {hold_s:.1f} s")

    def two_controllers(self, rng: random.Random) -> Injected:
        """Cut the controller off and start another elsewhere; then reconnect the old one."""
        between = self.cut(both(CONTROLLER, [*self.brokers, CLIENTS]))
        old = self.replace_controller()
        hold_s = rng.uniform(1.0, 8.0)

        def heal() -> None:
            self._mend(between)
            self.end_old(old)

        return Injected("a second controller", hold_s=hold_s, heal=heal, note=f"the first cut off for {hold_s:.1f} s")

    def _continue(self, name: str) -> None:
        self._stopped.discard(name)
        try:
            self.signal(name, signal.SIGCONT)
        except NoTarget:
            pass  # it ended while it was paused


def both(name: str, others: Iterable[str]) -> list[tuple[str, str]]:
    """Both directions between a node and others."""
    return [pair for other in others for pair in ((name, other), (other, name))]


_FAULTS: Final[dict[str, Callable[[Cuts, random.Random], Injected]]] = {
    "isolate-leader": Cuts.isolate_leader,
    "cut-leader-from-peers": Cuts.cut_leader_from_peers,
    "cut-leader-from-controller": Cuts.cut_leader_from_controller,
    "cut-clients-from-leader": Cuts.cut_clients_from_leader,
    "mute-leader": Cuts.mute_leader,
    "deafen-leader": Cuts.deafen_leader,
    "cut-one-way": Cuts.cut_one_way,
    "isolate-controller": Cuts.isolate_controller,
    "cut-controller-majority": Cuts.cut_controller_from_majority,
    "split-brokers": Cuts.split_brokers,
    "swizzle": Cuts.swizzle,
    "slow-node": Cuts.slow_node,
    "lossy-links": Cuts.lossy_links,
    "narrow-node": Cuts.narrow_node,
    "lose-node": Cuts.lose_node,
    "lose-controller": Cuts.lose_controller,
    "hang-node": Cuts.hang_node,
    "two-controllers": Cuts.two_controllers,
}
NETWORK_FAULTS: Final = tuple(_FAULTS)
