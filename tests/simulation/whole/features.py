"""The features that `whole-everything` mixes: each adds clients, settings and faults to a plan, whatever else is in it.

A seed draws a handful. Each feature draws from a source of its own, so that it brings the same with others and without:
a failing seed is narrowed by naming fewer features. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

from raylog.base.errors import did_you_mean
from tests.simulation.limits import limited
from tests.simulation.whole.parts import PARTS
from tests.simulation.whole.parts.part import Part
from tests.simulation.whole.plan import (
    CLIENTS,
    EVERYTHING,
    LOOSE,
    SINGLE,
    TABLES,
    THIN,
    UNCLEAN,
    Plan,
    draw,
    with_cleaners,
)

Feature = Callable[[Plan, random.Random], Plan]
"""Takes a plan and the feature's own source, and returns the plan with the feature."""
MOST: Final = 6
"""Most features that a seed draws, without those that they need."""


def _transactions(plan: Plan, chance: random.Random) -> Plan:
    partitions = {"transaction.state.log.num.partitions": str(chance.choice([1, 2]))}
    schemes = ("strike_place", "strike_place", "kill_transaction_coordinator", "pause_transaction_coordinator")
    return replace(
        plan,
        config={**plan.config, **partitions},
        schemes=(*plan.schemes, *schemes),
        tellers=chance.choice([1, 2, 3]),
        copiers=chance.choice([1, 2]),
        transaction_timeout_s=chance.choice([2.0, 6.0]),
    )


def _renewed_topic(plan: Plan, chance: random.Random) -> Plan:
    return replace(plan, renews_topic=True)


def _topic_created_again(plan: Plan, chance: random.Random) -> Plan:
    return replace(plan, renews=True)


def _short_memory(plan: Plan, chance: random.Random) -> Plan:
    forgets_s = chance.choice([15.0, 25.0])  # longer than a record may be on its way
    config = {
        **plan.config,
        "producer.id.expiration.ms": str(int(1000 * forgets_s)),
        "transactional.id.expiration.ms": str(int(1000 * forgets_s)),
        "offsets.retention.minutes": "1",
        "offsets.retention.check.interval.ms": "1000",
    }
    return replace(plan, config=config, forgets_producers_s=forgets_s, work_s=plan.work_s + 2 * forgets_s)


def _accounts(plan: Plan, chance: random.Random) -> Plan:
    return replace(with_cleaners(plan, chance), accounts=chance.choice([1, 2]))


def _tables(plan: Plan, chance: random.Random) -> Plan:
    return replace(with_cleaners(plan, chance), tables=tuple(TABLES))


def _queues(plan: Plan, chance: random.Random) -> Plan:
    return replace(
        plan,
        workers=chance.choice([1, 2]),
        queue_lock_ms=chance.choice([1_000, 3_000]),
        schemes=(*plan.schemes, "strike_queue", "strike_queue"),
    )


def _delays(plan: Plan, chance: random.Random) -> Plan:
    schemes = (*plan.schemes, "strike_scheduler", "strike_scheduler")
    return replace(plan, delayers=chance.choice([1, 2]), schemes=schemes)


def _halves(plan: Plan, chance: random.Random) -> Plan:
    return replace(plan, payers=chance.choice([1, 2]))


def _expiring_records(plan: Plan, chance: random.Random) -> Plan:
    schemes = (*plan.schemes, "strike_forwarder", "strike_forwarder")
    return replace(plan, expirers=chance.choice([1, 2]), schemes=schemes)


def _sleep(plan: Plan, chance: random.Random) -> Plan:
    return replace(
        plan,
        config={**plan.config, "replica.sleep.after.ms": str(chance.choice([1_000, 2_500]))},
        schemes=(*plan.schemes, "kill_of_sleeper", "strike_sleeper", "strand_broker"),
        send_pause_s=chance.choice([3.0, 8.0]),
        work_s=plan.work_s + 12.0,
        power_cuts=True,
        sleeps=True,
    )


def _doze(plan: Plan, chance: random.Random) -> Plan:
    return replace(
        plan,
        config={**plan.config, "replica.doze.after.ms": str(chance.choice([100, 300, 800]))},
        send_pause_s=max(plan.send_pause_s, chance.choice([1.0, 2.0, 5.0])),
        power_cuts=True,
        dozes=True,
    )


def _rolling_restarts(plan: Plan, chance: random.Random) -> Plan:
    besides = (*plan.topics_besides, LOOSE)
    return replace(plan, is_operated=True, topics_besides=besides, work_s=plan.work_s + 6.0, power_cuts=True)


def _unclean_elections(plan: Plan, chance: random.Random) -> Plan:
    besides = (*plan.topics_besides, UNCLEAN)
    return replace(plan, schemes=(*plan.schemes, "lose_unclean"), topics_besides=besides, power_cuts=True)


def _deposed_controllers(plan: Plan, chance: random.Random) -> Plan:
    schemes = ("split", "lose_contact", "depose_paused", "lose_replies")
    return replace(plan, schemes=(*plan.schemes, *schemes), client_hosts=2)


def _few_replicas(plan: Plan, chance: random.Random) -> Plan:
    besides = (*plan.topics_besides, THIN, SINGLE)
    return replace(plan, schemes=(*plan.schemes, "lose_single"), topics_besides=besides, power_cuts=True)


def _disks(plan: Plan, chance: random.Random) -> Plan:
    return replace(plan, disks=True, power_cuts=True, config={**plan.config, "replica.sync.time.max.ms": "2000"})


def _consumer_protocol(plan: Plan, chance: random.Random) -> Plan:
    is_open = chance.random() < 0.5
    return replace(plan, has_consumer_protocol=not is_open, has_default_protocol=is_open)


def _joined(part: type[Part]) -> Feature:
    return lambda plan, chance: part.join(replace(plan, parts=(*plan.parts, part)), chance)


FEATURES: Final[dict[str, Feature]] = {
    "transactions": _transactions,
    "renewed-topic": _renewed_topic,
    "short-memory": _short_memory,
    "accounts": _accounts,
    "topic-created-again": _topic_created_again,
    "tables": _tables,
    "queues": _queues,
    "delays": _delays,
    "halves": _halves,
    "expiring-records": _expiring_records,
    "sleep": _sleep,
    "doze": _doze,
    "rolling-restarts": _rolling_restarts,
    "unclean-elections": _unclean_elections,
    "deposed-controllers": _deposed_controllers,
    "few-replicas": _few_replicas,
    "disks": _disks,
    "consumer-protocol": _consumer_protocol,
    **{name: _joined(part) for name, part in PARTS.items()},
}
"""Every feature by name, in the order in which they are added. Moves, growth, deleted records, topics that come and go
and elections are in each run: the administrator's."""
NEEDS: Final = {"awake-limit": "sleep", "renewed-topic": "transactions", "accounts": "transactions", "halves": "delays"}
"""Features that another one is part of."""


def drawn(seed: int) -> tuple[str, ...]:
    """Return the features of a seed."""
    chance = random.Random(f"features {seed}")
    return with_needed(chance.sample(sorted(FEATURES), chance.randint(2, MOST)))


def with_needed(names: Sequence[str]) -> tuple[str, ...]:
    """Return these features and what they need, in their order. Raises ValueError with the names of all for another."""
    for name in names:
        if name not in FEATURES:
            known = list(FEATURES)
            raise ValueError(f"{did_you_mean('feature', name, known)} All features: {', '.join(known)}.")
    wanted = {*names, *(NEEDS[name] for name in names if name in NEEDS)}
    return tuple(name for name in FEATURES if name in wanted)


def plan_of(profile: str, seed: int, names: Sequence[str] = (), limits: Mapping[str, Any] | None = None) -> Plan:
    """Return the plan of a seed of any profile; ``names``: the features to mix in place of those the seed draws.

    ``limits`` are values of the plan in place of those it would have.
    """
    return limited(_plan_of(profile, seed, names), limits)


def _plan_of(profile: str, seed: int, names: Sequence[str]) -> Plan:
    plan = draw(profile, seed)
    if profile != EVERYTHING:
        return plan
    names = with_needed(names) if names else drawn(seed)
    plan = replace(plan, **CLIENTS, features=names, topics=1, work_s=plan.work_s + 8.0)
    for name in names:
        plan = FEATURES[name](plan, random.Random(f"{name} {seed}"))
    return _consistent(plan)


def _consistent(plan: Plan) -> Plan:
    """Leave out what features bring that has another meaning beside others."""
    if plan.disks:  # without power, such a topic may lose what it has acknowledged
        plan = replace(plan, topics_besides=tuple(topic for topic in plan.topics_besides if topic != LOOSE))
    # Beside many partitions that are as they should be, one that another leads may stay so.
    return replace(plan, config={**plan.config, "leader.imbalance.per.broker.percentage": "0"})


def pairs(seeds: Sequence[int]) -> dict[tuple[str, str], int]:
    """Return by pair of features, those that never meet too, how many of these seeds mix both."""
    met = dict.fromkeys(combinations(FEATURES, 2), 0)
    for seed in seeds:
        for pair in combinations(drawn(seed), 2):
            met[pair] += 1
    return met
