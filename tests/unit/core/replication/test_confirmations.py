"""Batches that would open a transaction wait at the leader until its coordinator has confirmed it."""

import pytest

from raylog.base.errors import (
    ConcurrentTransactions,
    InvalidTxnState,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RaylogError,
)
from raylog.core.outbox import Outbox
from raylog.core.replication.confirmations import CONFIRMED_WITHIN_MS, KNOWN_MAX, WAITING_MAX, Confirmations
from raylog.core.replication.events import (
    AppendBatches,
    AppendFailed,
    Effect,
    LeaderAppended,
    RefuseRequest,
    RequestDropped,
    TransactionalProduce,
    TransactionConfirmed,
    TxnClaim,
    VerifyTransaction,
)
from raylog.protocol.replica import ProduceRequest
from tests.unit.core.replication.context import ME, SECOND, Context, only, partition_state, some


def claim(producer: int = 7, epoch: int = 0, name: str = "etl") -> TxnClaim:
    return TxnClaim(transactional_id=name, producer_id=producer, producer_epoch=epoch)


@pytest.fixture
def context() -> Context:
    """A leader."""
    context = Context()
    context.notified(partition_state())
    return context


def produce(
    what: TxnClaim, request: int = 1, *, now_ms: int = 0, opens: bool = True, wait_ms: int = 30_000, epoch: int = 1
) -> TransactionalProduce:
    return TransactionalProduce(
        message=ProduceRequest("t1", 0, epoch, -1, wait_ms, what.transactional_id),
        cause="p",
        now_ms=now_ms,
        request=request,
        producer_id=what.producer_id,
        producer_epoch=what.producer_epoch,
        opens_transaction=opens,
    )


def sent(
    context: Context, what: TxnClaim, *, opens: bool = True, wait_ms: int = 30_000, epoch: int = 1
) -> Outbox[Effect]:
    """A producer's batch comes; its request is the context's last one."""
    context.last_request += 1
    return context.step(
        produce(what, context.last_request, now_ms=context.now_ms, opens=opens, wait_ms=wait_ms, epoch=epoch)
    )


def answered(context: Context, question: VerifyTransaction, error: RaylogError | None = None) -> Outbox[Effect]:
    return context.step(TransactionConfirmed(cause="v", now_ms=context.now_ms, request=question.request, error=error))


def requests(out: Outbox[Effect]) -> list[int]:
    return [effect.request for effect in some(AppendBatches, out.now)]


def test_a_batch_is_appended_once_its_transaction_is_confirmed(context: Context) -> None:
    question = only(VerifyTransaction, sent(context, claim()).now)
    assert question.claim == claim()
    assert question.deadline_ms == context.now_ms + CONFIRMED_WITHIN_MS
    assert requests(answered(context, question)) == [context.last_request]
    assert answered(context, question).now == [], "a second answer is to no request"


def test_the_question_ends_with_the_deadline_of_its_request(context: Context) -> None:
    question = only(VerifyTransaction, sent(context, claim(), wait_ms=200).now)
    assert question.deadline_ms == context.now_ms + 200


def test_a_batch_of_no_transaction_needs_no_query(context: Context) -> None:
    assert requests(context.produce_requested()) == [context.last_request]


def test_what_is_open_and_was_confirmed_is_added_to_without_a_query(context: Context) -> None:
    answered(context, only(VerifyTransaction, sent(context, claim()).now))
    for _ in range(3):
        assert requests(sent(context, claim(), opens=False)) == [context.last_request]
    only(VerifyTransaction, sent(context, claim(epoch=1)).now)  # the next one begins


def test_what_is_open_takes_no_batch_under_another_transactional_id(context: Context) -> None:
    answered(context, only(VerifyTransaction, sent(context, claim()).now))
    question = only(VerifyTransaction, sent(context, claim(name="strange"), opens=False).now)
    assert question.claim.transactional_id == "strange"
    refusal = only(RefuseRequest, answered(context, question, InvalidTxnState("not of this producer")).now)
    assert refusal.request == context.last_request
    assert requests(sent(context, claim(), opens=False)) == [context.last_request], "its own producer goes on"
    nameless = only(RefuseRequest, sent(context, claim(name=""), opens=False).now)
    assert isinstance(nameless.error, InvalidTxnState)


def test_a_new_leader_queries_once_for_what_it_finds_open(context: Context) -> None:
    answered(context, only(VerifyTransaction, sent(context, claim()).now))
    context.notified(partition_state(leader=SECOND, leader_epoch=2, partition_epoch=2))
    context.notified(partition_state(leader_epoch=3, partition_epoch=3))
    question = only(VerifyTransaction, sent(context, claim(), opens=False, epoch=3).now)
    first = context.last_request
    assert sent(context, claim(), opens=False, epoch=3).now == [], "it waits behind the one before"
    assert requests(answered(context, question)) == [first, first + 1]
    assert requests(sent(context, claim(), opens=False, epoch=3)) == [context.last_request]


def test_of_so_many_producers_is_known_what_was_confirmed() -> None:
    confirmations = Confirmations()
    out: Outbox[Effect] = Outbox()
    for producer in range(KNOWN_MAX + 1):
        confirmations.wait(produce(claim(producer)), 0, producer, out)
        confirmations.answered(TransactionConfirmed(cause="v", now_ms=0, request=producer, error=None))
    assert not confirmations.has_confirmed(claim(0))
    assert all(confirmations.has_confirmed(claim(producer)) for producer in range(1, KNOWN_MAX + 1))


def test_batches_of_one_producer_keep_their_order_and_share_a_query(context: Context) -> None:
    question = only(VerifyTransaction, sent(context, claim()).now)
    first = context.last_request
    for _ in range(3):
        assert sent(context, claim()).now == []
    assert requests(answered(context, question)) == [first, first + 1, first + 2, first + 3]


def test_other_producers_do_not_wait(context: Context) -> None:
    sent(context, claim(7))
    assert requests(context.produce_requested()) == [context.last_request]
    other = only(VerifyTransaction, sent(context, claim(8)).now)
    assert requests(answered(context, other)) == [context.last_request]


def test_all_that_waits_is_refused_with_the_coordinators_answer(context: Context) -> None:
    question = only(VerifyTransaction, sent(context, claim()).now)
    sent(context, claim())
    out = answered(context, question, InvalidTxnState("it is not open"))
    refusals = some(RefuseRequest, out.now)
    assert [each.request for each in refusals] == [context.last_request - 1, context.last_request]
    assert all(isinstance(each.error, InvalidTxnState) for each in refusals)
    assert requests(out) == []


def test_another_epoch_behind_a_refused_one_is_queried_by_itself(context: Context) -> None:
    question = only(VerifyTransaction, sent(context, claim(epoch=0)).now)
    sent(context, claim(epoch=1))
    out = answered(context, question, InvalidTxnState("it is over"))
    assert only(RefuseRequest, out.now).request == context.last_request - 1
    following = only(VerifyTransaction, out.now)
    assert following.claim == claim(epoch=1)
    assert following.request != question.request
    assert requests(answered(context, following)) == [context.last_request]


def test_a_claim_without_a_transactional_id_is_refused(context: Context) -> None:
    refusal = only(RefuseRequest, sent(context, claim(name="")).now)
    assert isinstance(refusal.error, InvalidTxnState)


def test_a_claim_is_refused_where_replicas_are_missing_or_another_leads() -> None:
    context = Context()
    context.notified(partition_state(isr=(ME,)))
    assert isinstance(only(RefuseRequest, sent(context, claim()).now).error, NotEnoughReplicas)
    follower = Context()
    follower.notified(partition_state(leader=SECOND))
    assert isinstance(only(RefuseRequest, sent(follower, claim()).now).error, NotLeaderOrFollower)


def test_a_replaced_leader_refuses_what_waits_and_ignores_the_answer(context: Context) -> None:
    question = only(VerifyTransaction, sent(context, claim()).now)
    waited = context.last_request
    out = context.notified(partition_state(leader=SECOND, leader_epoch=2, partition_epoch=2))
    assert [each.request for each in some(RefuseRequest, out.now)] == [waited]
    assert answered(context, question).now == []
    context.notified(partition_state(leader_epoch=3, partition_epoch=3))
    assert answered(context, question).now == [], "nor is it an answer to the next leadership"


def test_a_dropped_request_is_not_appended(context: Context) -> None:
    question = only(VerifyTransaction, sent(context, claim()).now)
    context.step(RequestDropped(cause="d", now_ms=context.now_ms, request=context.last_request))
    assert answered(context, question).now == []


def test_a_failed_append_leaves_the_next_batch_to_be_looked_at_by_the_log(context: Context) -> None:
    question = only(VerifyTransaction, sent(context, claim()).now)
    first = context.last_request
    sent(context, claim())
    assert requests(answered(context, question)) == [first, first + 1]
    context.step(AppendFailed(cause="a", now_ms=context.now_ms, request=first, error=InvalidTxnState("no")))
    end = context.machine.log_end_offset
    context.step(
        LeaderAppended(
            cause="a", now_ms=context.now_ms, request=first + 1, first_offset=end, end_offset=type(end)(end + 1)
        )
    )
    context.machine.validate()


def test_so_many_may_wait_and_no_more(context: Context) -> None:
    for _ in range(WAITING_MAX):
        sent(context, claim())
    refusal = only(RefuseRequest, sent(context, claim(8)).now)
    assert isinstance(refusal.error, ConcurrentTransactions)
    assert refusal.error.retriable
