"""Administration of transactions: what is listed and described, and what is written to end one."""

from __future__ import annotations

import json
import time

import pytest

from raylog.base.errors import InvalidTxnState, TransactionalIdNotFound
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import Admin
from raylog.client.admin.transactions import ProducerDescription, TransactionDescription, TransactionListing
from raylog.protocol.message import Empty
from raylog.protocol.replica import DESCRIBE_PRODUCERS, WRITE_TXN_MARKERS, ActiveProducer, WriteTxnMarkersRequest
from raylog.protocol.transactions import (
    DESCRIBE_TRANSACTION,
    INIT_TRANSACTIONS,
    LIST_TRANSACTIONS,
    DescribeTransactionReply,
    InitTransactionsReply,
    ListedTransaction,
    ListTransactionsRequest,
    TxnPartition,
)
from raylog.rpc import Request
from tests.unit.cli.support import Outcome, raylog, refusal
from tests.unit.client.toy_replica import ToyReplica
from tests.unit.client.toy_server import SECRET, ToyCluster

WHERE = TopicPartition("t", 1)
OLD_MS, NEW_MS = 1_000, int(time.time() * 1000) + 3_600_000
OPEN = ActiveProducer(7, 3, 9, OLD_MS, 1, 5)
HANGING = ActiveProducer(8, 0, 9, OLD_MS, 1, 6)
YOUNG = ActiveProducer(9, 0, 9, NEW_MS, 1, 7)
CLOSED = ActiveProducer(10, 0, 9, OLD_MS, 1, -1)


class Answers:
    """A coordinator that holds one transaction of producer 7, and a leader that knows four producers."""

    def __init__(self, cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.listed: list[ListTransactionsRequest] = []
        self.initialized: list[str] = []
        self.markers: list[WriteTxnMarkersRequest] = []
        self.known = [OPEN, HANGING, YOUNG, CLOSED]
        self.ended_meanwhile: list[int] = []
        """Producers whose transactions end after the next look at their partition."""
        cluster.create_topic("__transaction_state", partitions=1)
        self.topic_id = cluster.create_topic("t", partitions=2)
        """Of the topic in the transaction."""
        self.listed_id = 7
        cluster.partitions["__transaction_state", 0].high_watermark = 1
        cluster.extra_methods |= {
            "list_transactions": self._list,
            "describe_transaction": self._describe,
            "init_transactions": self._initialize,
        }
        serve = ToyReplica._serve

        def serve_producers(replica: ToyReplica, request: Request) -> None:
            if request.method == DESCRIBE_PRODUCERS.name:
                at = (replica.partition.topic, replica.partition.partition)
                request.reply(self.known if at == WHERE else [])
                self.known = [each for each in self.known if each.producer_id not in self.ended_meanwhile]
            elif request.method == WRITE_TXN_MARKERS.name:
                self.markers.append(WRITE_TXN_MARKERS.read_request(request.args))
                request.reply(Empty())
            else:
                serve(replica, request)

        monkeypatch.setattr(ToyReplica, "_serve", serve_producers)

    def _list(self, request: Request) -> None:
        self.listed.append(LIST_TRANSACTIONS.read_request(request.args))
        request.reply([ListedTransaction("orders", self.listed_id, "Ongoing"), ListedTransaction("idle", 11, "Empty")])

    def _describe(self, request: Request) -> None:
        name = DESCRIBE_TRANSACTION.read_request(request.args).transactional_id
        if name != "orders":
            raise TransactionalIdNotFound(f"No producer has the transactional id {name!r}.")
        partitions = [TxnPartition(self.topic_id, "t", 1)]
        request.reply(
            DescribeTransactionReply(
                transactional_id="orders",
                coordinator=4,
                producer_id=7,
                producer_epoch=3,
                state="Ongoing",
                timeout_ms=60_000,
                started_ms=OLD_MS,
                partitions=partitions,
                groups=["board"],
            )
        )

    def _initialize(self, request: Request) -> None:
        wanted = INIT_TRANSACTIONS.read_request(request.args)
        assert wanted.transaction_timeout_ms == 1, "every transaction.max.timeout.ms allows it"
        self.initialized.append(wanted.transactional_id)
        request.reply(InitTransactionsReply(7, 4))

    def run(self, *arguments: str) -> Outcome:
        """Run `raylog transaction` against this cluster."""
        options = ("--bootstrap", self.cluster.bootstrap)
        return raylog("transaction", *arguments, *options, RAYLOG_SECRET=SECRET.hex())


@pytest.fixture
def answers(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> Answers:
    return Answers(cluster, monkeypatch)


def test_the_coordinators_that_were_ever_used_list_their_transactions(cluster: ToyCluster, answers: Answers) -> None:
    with Admin(**cluster.options) as admin:
        found = admin.list_transactions(["Ongoing"], longer_than_ms=5)
    assert found == [TransactionListing("idle", 11, "Empty"), TransactionListing("orders", 7, "Ongoing")]
    assert answers.listed == [ListTransactionsRequest(["Ongoing"], 5, coordinator=0)]


def test_without_a_transaction_ever_none_is_listed(cluster: ToyCluster) -> None:
    with Admin(**cluster.options) as admin:
        assert admin.list_transactions() == []


def test_a_transaction_is_described(cluster: ToyCluster, answers: Answers) -> None:
    with Admin(**cluster.options) as admin:
        assert admin.describe_transactions(["orders"]) == {
            "orders": TransactionDescription("orders", 4, "Ongoing", 7, 3, 60_000, OLD_MS, (WHERE,), ("board",))
        }
        with pytest.raises(TransactionalIdNotFound, match="'order'"):
            admin.describe_transactions(["orders", "order"])


def test_the_producers_of_a_partition_are_described(cluster: ToyCluster, answers: Answers) -> None:
    with Admin(**cluster.options) as admin:
        found = admin.describe_producers([WHERE, ("t", 0)])
    assert found[TopicPartition("t", 0)] == ()
    assert found[WHERE][0] == ProducerDescription(7, 3, 9, OLD_MS, 1, 5)
    assert found[WHERE][3].txn_start_offset is None


def test_what_no_coordinator_knows_hangs_whatever_its_timestamps_are(cluster: ToyCluster, answers: Answers) -> None:
    with Admin(**cluster.options) as admin:
        found = admin.find_hanging_transactions()
        assert [(each.partition, each.producer.producer_id) for each in found] == [(WHERE, 8), (WHERE, 9)]
        [old] = admin.find_hanging_transactions(longer_than_ms=900_000)
        assert old.producer.producer_id == 8
        assert admin.find_hanging_transactions(longer_than_ms=NEW_MS) == []
        cluster.asleep.add(("t", 1))
        cluster.version += 1
        assert admin.find_hanging_transactions() == [], "it would be woken, and has none open"


def test_a_transaction_whose_producer_id_is_used_up_does_not_hang(cluster: ToyCluster, answers: Answers) -> None:
    """It is prepared: the list of an earlier release has the id of the next producer."""
    answers.listed_id = 12
    with Admin(**cluster.options) as admin:
        assert [each.producer.producer_id for each in admin.find_hanging_transactions()] == [8, 9]


def test_a_transaction_with_an_earlier_topic_of_that_name_hangs(cluster: ToyCluster, answers: Answers) -> None:
    """The topic was deleted and created again: nothing ends what is open in it now."""
    answers.topic_id = "another id"
    with Admin(**cluster.options) as admin:
        assert [each.producer.producer_id for each in admin.find_hanging_transactions()] == [7, 8, 9]


def test_what_ends_during_the_search_does_not_hang(cluster: ToyCluster, answers: Answers) -> None:
    answers.ended_meanwhile = [8]
    with Admin(**cluster.options) as admin:
        assert [each.producer.producer_id for each in admin.find_hanging_transactions()] == [9]


def test_a_hanging_transaction_is_ended_by_a_marker_of_the_next_epoch(cluster: ToyCluster, answers: Answers) -> None:
    with Admin(**cluster.options) as admin:
        admin.abort_transaction(WHERE, 8)
        for producer_id in (10, 99):
            with pytest.raises(InvalidTxnState, match=f"Producer {producer_id} has no open transaction in t-1"):
                admin.abort_transaction(WHERE, producer_id)
    [marker] = answers.markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.committed) == (8, 1, -1, False)


def test_a_known_id_is_fenced_and_an_unknown_one_is_not_made(cluster: ToyCluster, answers: Answers) -> None:
    with Admin(**cluster.options) as admin:
        admin.fence_producers(["orders"])
        with pytest.raises(TransactionalIdNotFound):
            admin.fence_producers(["order"])
    assert answers.initialized == ["orders"]


def test_the_commands_list_and_describe(answers: Answers) -> None:
    assert "orders            7            Ongoing" in answers.run("list", "--state", "Ongoing").out
    assert json.loads(answers.run("list", "--longer-than", "2", "--json").out)[1]["transactional_id"] == "orders"
    assert answers.listed[1].longer_than_ms == 2_000
    shown = answers.run("describe", "orders").out
    assert "Transactional id orders: Ongoing, producer 7 in epoch 3, coordinator 4" in shown
    assert "it times out after 60 s" in shown
    assert "t-1" in shown
    assert json.loads(answers.run("describe", "orders", "--json").out)["groups"] == ["board"]
    assert "'order'" in refusal(answers.run("describe", "order"), 1)


def test_the_commands_find_and_end_what_hangs(answers: Answers) -> None:
    shown = answers.run("hanging", "--longer-than", "900").out
    [command] = [line.removeprefix("End it: ") for line in shown.splitlines() if line.startswith("End it: ")]
    everything = json.loads(answers.run("hanging", "--json").out)
    assert [row["producer_id"] for row in everything] == [8, 9]
    assert everything[0]["command"] == command
    ended = answers.run(*command.split()[2:])
    assert ended.out == "The transaction of producer 8 in t-1 was aborted.\n"
    assert len(answers.markers) == 1
    assert answers.run("abort", "orders").out.startswith("The producer orders was fenced")
    assert answers.initialized == ["orders"]
    for arguments in (["abort"], ["abort", "orders", "--topic", "t"], ["abort", "--topic", "t"]):
        assert "--producer-id" in refusal(answers.run(*arguments), 2)
    assert answers.run("hanging", "--longer-than", "9e9").out == "No transaction hangs.\n"
