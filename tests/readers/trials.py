"""What one seed draws: a reader, a topic, and the faults that hit it while it reads. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

READERS: Final = ("ray", "follow", "spark", "stream", "columns")
"""`raylog.data.read` once and continuous, Spark in batches and micro-batches, and `Consumer.consume_batch`."""
REPEATED: Final = frozenset({"ray", "follow", "spark", "stream"})
"""Readers with workers, which can be killed."""
KINDS: Final = ("plain", "plain", "compacted", "transactional")
FAULTS: Final = (
    "worker",  # the process that reads is killed
    "worker",
    "leader",  # the leaders of the topic are killed, or move
    "leader",
    "cut",  # all connections break
    "delete",  # delete_records up to an offset
    "retention",  # whole segments go
    "compact",  # the cleaner passes over the log
    "damage",  # one bit of what one replica has stored flips
    "ruin",  # one bit of what all replicas have stored flips
    "expire",  # the token of the reader ends
    "recreate",  # the topic is deleted and created again, with other records
)
HEALED: Final = frozenset({"leader", "cut", "damage"})
"""What a reader survives: no error is right because of these alone, where another replica leads."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, once a reader has a share of its rows."""

    kind: str
    after: float
    """Of the rows of a whole read; the reader waits meanwhile."""
    upto: float
    """For deletions: this share of each log goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one seed does."""

    seed: int
    reader: str
    kind: str
    partitions: int
    rows: int
    """Of each partition, about."""
    value_bytes: int
    batch_rows: int
    replicas: int
    tasks: int
    committed: bool
    fails_on_loss: bool
    near: bool
    """Whether files on this machine are read."""
    faults: tuple[Fault, ...]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its faults."""
        return frozenset(fault.kind for fault in self.faults)

    def __str__(self) -> str:
        faults = ", ".join(f"{fault.kind}@{fault.after:.2f}" for fault in self.faults) or "no fault"
        return (
            f"seed {self.seed}: {self.reader} of {self.partitions} x {self.rows} rows of {self.value_bytes} bytes, "
            f"{self.kind}, {self.replicas} replicas, {self.tasks} tasks, "
            f"{'committed' if self.committed else 'uncommitted'}, "
            f"{'fails on' if self.fails_on_loss else 'skips'} loss, {'near' if self.near else 'remote'}; {faults}"
        )


def draw(seed: int) -> Trial:
    """The trial of a seed; sizes are for a cluster in memory."""
    dice = random.Random(seed)
    reader = dice.choice(READERS)
    kind = dice.choice(KINDS)
    known = [fault for fault in FAULTS if reader in REPEATED or fault != "worker"]
    faults = [
        Fault(dice.choice(known), round(dice.uniform(0.0, 0.95), 2), round(dice.uniform(0.05, 1.0), 2))
        for _ in range(dice.choice((0, 1, 1, 2, 2, 2, 3, 3)))
    ]
    rows = dice.choice((1, 40, 400, 1_200))
    return Trial(
        seed=seed,
        reader=reader,
        kind=kind,
        partitions=dice.randint(1, 3),
        rows=rows,
        value_bytes=dice.choice((8, 40, 200)),
        batch_rows=dice.choice((1, 7, 50)) if rows < 400 else dice.choice((20, 90)),
        replicas=dice.choice((1, 3)),
        tasks=dice.randint(1, 4),
        committed=dice.random() < 0.6,
        fails_on_loss=dice.random() < 0.6,
        near=dice.random() < 0.5,
        faults=tuple(sorted(faults, key=lambda fault: fault.after)),
    )


def for_a_cluster(trial: Trial) -> Trial:
    """The same with sizes at which a read on a real cluster is still under way when its faults come."""
    dice = random.Random(-trial.seed - 1)
    rows = dice.choice((400, 30_000, 60_000, 100_000))
    value_bytes = dice.choice((60, 100, 200)) if rows > 400 else 20_000
    partitions = min(trial.partitions, 2) if trial.replicas > 1 else trial.partitions
    return replace(
        trial, rows=rows, value_bytes=value_bytes, partitions=partitions, batch_rows=rows if rows <= 400 else 2_000
    )
