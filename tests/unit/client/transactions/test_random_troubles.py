"""Transactions under seeded troubles: what was committed is there once, and nothing else."""

from __future__ import annotations

import random

import pytest

from raylog.base.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    NotCoordinator,
    NotLeaderOrFollower,
    RaylogError,
    RecordTooLarge,
)
from raylog.base.ids import TopicPartition
from raylog.client.producer.producer import Producer
from raylog.client.types import ConsumerGroupMetadata
from tests.unit.client.toy_server import ToyCluster
from tests.unit.client.transactions.toy_transactions import Fault, ToyTransactions

METHODS = ("add_partitions_to_txn", "add_offsets_to_txn", "txn_offset_commit", "end_txn")
OF_COORDINATORS: tuple[Fault, ...] = (
    ConcurrentTransactions(),
    CoordinatorLoadInProgress(),
    NotCoordinator(),
    "cut_after",
)
OF_LEADERS = ("cut_before", "cut_after", "duplicate_reply", NotLeaderOrFollower.code, RecordTooLarge.code)
GROUP = ConsumerGroupMetadata("board")
PARTITIONS, TRANSACTIONS = 3, 12


def trouble(chance: random.Random, cluster: ToyCluster, coordinator: ToyTransactions) -> None:
    """Something goes wrong, or nothing does."""
    kind = chance.random()
    if kind < 0.3:
        coordinator.faults[chance.choice(METHODS)].append(chance.choice(OF_COORDINATORS))
    elif kind < 0.7:
        cluster.set_faults("t", chance.randrange(PARTITIONS), [chance.choice(OF_LEADERS)])
    elif kind < 0.8:
        cluster.move_leader("t", chance.randrange(PARTITIONS))
    elif kind < 0.85:
        cluster.cut_connections()


@pytest.mark.parametrize("seed", range(12))
def test_what_was_committed_is_there_once(cluster: ToyCluster, coordinator: ToyTransactions, seed: int) -> None:
    chance = random.Random(seed)
    cluster.create_topic("t", partitions=PARTITIONS)
    expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    offset = -1
    with Producer(**cluster.options, transactional_id="orders", retry_backoff_ms=1) as producer:
        producer.init_transactions()
        for number in range(TRANSACTIONS):
            sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
            producer.begin_transaction()
            try:
                for step in range(chance.randrange(12)):
                    trouble(chance, cluster, coordinator)
                    at = chance.randrange(PARTITIONS)
                    sent[at].append(b"%d.%d" % (number, step))
                    producer.send_batch("t", sent[at][-1:], partition=at)
                has_offsets = chance.random() < 0.5
                if has_offsets:
                    producer.send_offsets_to_transaction({TopicPartition("t", 0): number}, GROUP)
                if chance.random() < 0.3:
                    producer.abort_transaction()
                    continue
                producer.commit_transaction()
            except RaylogError:
                producer.abort_transaction()
                continue
            expected = [before + more for before, more in zip(expected, sent, strict=True)]
            offset = number if has_offsets else offset
    assert [coordinator.values("t", number) for number in range(PARTITIONS)] == expected
    assert coordinator.offsets.get(("board", "t", 0), -1) == offset
