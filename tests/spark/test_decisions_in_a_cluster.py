"""Exactly-once against a whole cluster, without Spark: drivers that die at a request, and those that follow them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from raylog.base.errors import InvalidTxnState, ProducerFenced, TransactionAborted
from raylog.client.admin.admin import Admin
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ProducerConfig, load
from raylog.client.producer.bulk import send_all
from raylog.client.producer.producer import Producer
from raylog.client.runtime import shared
from raylog.spark.writing.commits import Decision, End, Fence, Prepared, Read, Request, Store, Talk, commit, task_id
from raylog.spark.writing.coordinators import Coordinators, hold
from raylog.spark.writing.driver import abort_batch, commit_batch
from raylog.spark.writing.task_writer import OwnTransaction, TaskPlan, Written, parts_of
from tests.spark.whole_cluster import WholeCluster

pytestmark = pytest.mark.slow

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeCluster]:
    """One broker; each test has a topic of its own, whose name is the prefix too."""
    with WholeCluster(tmp_path_factory.mktemp("whole")) as running:
        yield running


class Query:
    """A query's tasks and drivers, by hand."""

    def __init__(self, whole: WholeCluster, name: str) -> None:
        whole.create_topic(name)
        self.name = name
        self._whole = whole
        with Admin(**whole.options) as admin:
            token = admin.create_token(write=[name], transactional_id_prefix=name)
        bootstrap = whole.options["bootstrap"]
        self.plan = TaskPlan(name, bootstrap, token, {"transaction_timeout_ms": 60_000}, True, name)

    def write(self, value: str, batch: int, *, task: int = 0, attempt: int = 0) -> Written:
        """One attempt of one task writes one row."""
        producer = Producer(
            bootstrap=self.plan.bootstrap,
            token=self.plan.token,
            transactional_id=task_id(self.name, task, attempt),
            **self.plan.producer,
        )
        try:
            own = OwnTransaction(producer, self.name)
            if not own.begin("query", batch, takes_over=False):
                return Written(0, self.name, "query", attempt)
            rows = [pa.record_batch({"value": pa.array([value.encode()])})] if value else []
            records = send_all(producer, parts_of(self.name, rows))
            return Written(records, self.name, "query", attempt, own.leave_open())
        finally:
            producer.close(1.0)

    def commit(self, written: list[Written], batch: int) -> None:
        """The driver, to its end."""
        commit_batch(lambda: self.plan, written, batch)

    def die_at(self, last: type[Request], written: list[Written], batch: int) -> None:
        """A driver that is killed when it is about to send its first request of this kind."""
        prepared = [each.prepared for each in written if each.prepared is not None]
        self.run(_until(commit("query", batch, prepared, takes_over=False), last))

    def run(self, work: Callable[[Coordinators], Awaitable[Any]]) -> Any:
        """Run `work(coordinators)` with a connection to the cluster."""

        async def connected() -> Any:
            config = load(ProducerConfig, {}, {"bootstrap": self.plan.bootstrap, "token": self.plan.token})
            cluster = ClusterClient(config)
            await cluster.start(TIMEOUT_S)
            try:
                return await work(Coordinators(cluster, config, self.name, timeout_s=TIMEOUT_S))
            finally:
                await cluster.close()

        return shared().run(connected(), TIMEOUT_S + 5)

    def values(self) -> list[bytes]:
        """What a reader of committed records sees."""
        return self._whole.values(self.name)

    def values_at_rest(self) -> list[bytes]:
        """The same when every transaction has ended."""
        return self._whole.values_at_rest(self.name)


def _until(talk: Talk[Any], last: type[Request]) -> Callable[[Coordinators], Awaitable[None]]:
    async def work(coordinators: Coordinators) -> None:
        requests = next(talk)
        while not any(isinstance(each, last) for each in requests):
            requests = talk.send(list(await asyncio.gather(*(coordinators.answer(each) for each in requests))))
        talk.close()

    return work


def test_a_driver_that_dies_before_its_decision_leaves_nothing_visible(whole: WholeCluster) -> None:
    query = Query(whole, "undecided")
    query.die_at(Store, [query.write("lost", 0), query.write("lost too", 0, task=1)], 0)
    assert query.values() == []
    again = [query.write("a", 0), query.write("b", 0, task=1)]
    assert query.values() == []
    query.commit(again, 0)
    assert query.values_at_rest() == [b"a", b"b"]


def test_a_decided_batch_is_finished_by_a_repetition_that_writes_nothing(whole: WholeCluster) -> None:
    query = Query(whole, "decided")
    query.die_at(End, [query.write("a", 0), query.write("b", 0, task=1)], 0)
    again = [query.write("a", 0), query.write("b", 0, task=1)]
    assert [each.records for each in again] == [0, 0]
    query.commit(again, 0)
    query.commit(again, 0)
    assert query.values_at_rest() == [b"a", b"b"]
    query.commit([query.write("c", 1)], 1)
    assert query.values_at_rest() == [b"a", b"b", b"c"]
    with pytest.raises(InvalidTxnState, match="Batch 0 is repeated although batch 1 is committed"):
        query.write("of an older checkpoint", 0)
    assert query.values_at_rest() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("last", "visible"), [(End, [b"a", b"b"]), (Store, [])])
def test_an_empty_job_ends_what_a_query_left(whole: WholeCluster, last: type[Request], visible: list[bytes]) -> None:
    query = Query(whole, f"left-at-{last.__name__}")
    query.die_at(last, [query.write("a", 0), query.write("b", 0, task=1)], 0)
    commit_batch(lambda: query.plan, [Written(0, query.name, "job", run="job")], None)
    assert query.values_at_rest() == visible


def test_a_batch_whose_commit_failed_behind_the_decision_is_not_aborted(whole: WholeCluster) -> None:
    query = Query(whole, "aborted-late")
    written = [query.write("a", 0), query.write("b", 0, task=1)]
    query.die_at(End, written, 0)
    abort_batch(lambda: query.plan, [*written, None])
    assert query.values_at_rest() == [b"a", b"b"]


def test_a_batch_that_fails_is_aborted_with_its_lost_attempts(whole: WholeCluster) -> None:
    query = Query(whole, "aborted")
    written = [query.write("a", 0), None]
    query.write("b", 0, task=1, attempt=3)  # its message was lost
    abort_batch(lambda: query.plan, written)
    with pytest.raises(TransactionAborted, match="restart the query"):
        query.commit([each for each in written if each is not None], 0)
    with pytest.raises(InvalidTxnState, match="1 of 2 tasks"):
        commit_batch(lambda: query.plan, written, 0)
    assert query.values() == []


def test_leftovers_do_not_hold_up_readers_behind_the_first_batch_of_a_run(whole: WholeCluster) -> None:
    query = Query(whole, "swept")
    query.write("left", 0, task=7, attempt=2)
    query.commit([query.write("a", 0)], 0)
    assert query.values_at_rest() == [b"a"]


def test_tasks_without_rows_take_part_in_the_decision(whole: WholeCluster) -> None:
    query = Query(whole, "empty")
    query.commit([query.write("", 0), query.write("", 0, task=1)], 0)
    found = query.run(lambda coordinators: coordinators.answer(Read()))
    assert (found.owner, found.batch, found.transactions) == ("query", 0, ())
    query.commit([query.write("a", 1)], 1)
    assert query.values_at_rest() == [b"a"]


def test_a_driver_that_was_replaced_neither_reads_nor_decides(whole: WholeCluster) -> None:
    query = Query(whole, "replaced")

    async def work(coordinators: Coordinators) -> None:
        first = await coordinators.answer(Fence())
        assert await coordinators.answer(Read(first)) is None
        second = await coordinators.answer(Fence())
        for request in (Read(first), Store(first, Decision("query", 0, ()))):
            with pytest.raises(ProducerFenced):
                await coordinators.answer(request)
        decision = Decision("query", 0, (Prepared(task_id(query.name, 0, 0), 5, 6),), run="run")
        assert await coordinators.answer(Read(second)) is None
        await coordinators.answer(Store(second, decision))
        third = await coordinators.answer(Fence())
        assert await coordinators.answer(Read(third)) == decision

    query.run(work)


def test_a_driver_that_dies_while_it_stores_does_not_hold_up_tasks(whole: WholeCluster) -> None:
    query = Query(whole, "stopped")

    async def work(coordinators: Coordinators) -> None:
        assert await coordinators.answer(Read(await coordinators.answer(Fence()))) is None  # its transaction is open

    query.run(work)
    began_s = time.monotonic()
    query.commit([query.write("a", 0)], 0)
    assert time.monotonic() - began_s < TIMEOUT_S
    assert query.values_at_rest() == [b"a"]


def test_a_second_commit_of_the_same_tasks_changes_nothing(whole: WholeCluster) -> None:
    query = Query(whole, "twice")
    written = [query.write("a", 0)]

    async def both(coordinators: Coordinators) -> None:
        prepared = [each.prepared for each in written if each.prepared is not None]
        talks = [hold(commit("query", 0, prepared, takes_over=False), coordinators.answer) for _ in range(2)]
        await asyncio.gather(*talks, return_exceptions=True)

    query.run(both)
    query.commit(written, 0)
    assert query.values_at_rest() == [b"a"]
