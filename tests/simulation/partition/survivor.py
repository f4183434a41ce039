"""The last replica: all others go down under load, and acknowledged records stay readable (L4).

Called at the end of a run's faults, when everything else is healthy again. A partition with a clean leader serves its
consumers every acknowledged record and its end, with any number of replicas left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.partition.simulation import Simulation

_PATIENCE_US = 9_000_000
"""Sessions expire, a stopped broker is restarted, a leader is elected, and a consumer fetches."""
_LOOK_US = 50_000


def leave_one(simulation: Simulation) -> None:
    """Take all replicas down but one, which may restart too, wait for its readers, and restart the others."""
    world, state = simulation.world, simulation.controller.state
    if state is None:
        return
    survivor = world.random.choice(state.replicas)
    world.log("r{} is to be the last one", survivor)
    others = [broker for broker in simulation.brokers if broker != survivor]
    for broker in others:
        world.after(world.between_us(0, 400), _take_down, simulation, broker)
    if world.chance(0.6):
        world.after(world.between_us(0, 1500), simulation.crash, survivor, "though it is the last one")
    deadline_us = world.now_us + _PATIENCE_US
    world.run_until(world.now_us + 1_600_000)
    missing = _missing(simulation, survivor)
    while missing is not None and world.now_us < deadline_us:
        world.run_until(world.now_us + _LOOK_US)
        missing = _missing(simulation, survivor)
    if missing is not None:
        raise Violation("L4", f"{survivor} is the last replica, and {missing}")
    simulation.kept_down.clear()
    for broker in others:
        simulation.start_replica(broker)


def _take_down(simulation: Simulation, broker: int) -> None:
    simulation.kept_down.add(broker)
    simulation.crash(broker, "the survivor is to be alone")


def _missing(simulation: Simulation, survivor: int) -> str | None:
    """Return what a reader lacks; None too where no clean leader is possible."""
    state, process = simulation.controller.state, simulation.leader()
    if state is None or survivor not in (*state.isr, *state.elr) or simulation.controller.public.lost_logs:
        return None
    if process is None or process.machine is None or process.broker != survivor:
        return f"no replica leads: {state}"
    exposed, end = process.machine.exposed_high_watermark, simulation.checks.acked.end
    if exposed is None or exposed < end:
        return f"its end is {exposed}, {end} is acknowledged, in {state}"
    for consumer in simulation.consumers:
        if consumer.position < end:
            return f"consumer {consumer.address} is at {consumer.position}, {end} is acknowledged"
    simulation.survived += 1
    return None
