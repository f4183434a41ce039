"""Shared by the scripts of stories: current leader and follower, how to cut off a broker, and a calm cluster."""

from __future__ import annotations

from tests.simulation.partition.network import CONTROLLER
from tests.simulation.partition.simulation import Simulation
from tests.simulation.profiles import Faults


def leading_broker(simulation: Simulation) -> int:
    """The leader by the durable metadata."""
    state = simulation.controller.state
    assert state is not None
    return state.leader


def follower_of(simulation: Simulation) -> int:
    """The last broker that does not lead."""
    return max(broker for broker in simulation.brokers if broker != leading_broker(simulation))


def isolate(simulation: Simulation, broker: int, *, joined: bool = False) -> None:
    """Cut a broker off from the controller and the other brokers, not from clients; or join it again."""
    network = simulation.network
    for other in (CONTROLLER, *(other for other in simulation.brokers if other != broker)):
        for source, target in ((broker, other), (other, broker)):
            if joined:
                network.join(source, target)
            else:
                network.cut(source, target)


def faults(**options: float) -> Faults:
    """A calm cluster, in which only the story injects faults."""
    calm = {
        "brokers": 3,
        "chaos_s": 6,
        "converge_s": 6,
        "lag_max_ms": 300,
        "session_timeout_ms": 300,
        "produce_pause_ms": 5,
    }
    return Faults(**(calm | options))  # type: ignore[arg-type]  # counts are whole numbers in every story
