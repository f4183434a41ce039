"""A coordinator serves the keys of its own partition only."""

from typing import Any

import msgspec
import pytest

from raylog.actors.groups.requests import EVENTS as GROUP_EVENTS
from raylog.base.errors import NotCoordinator, RaylogError
from raylog.core.coordinators.hashing import coordinator_partition
from raylog.core.coordinators.share import EVERY_KEY, KeyShare
from raylog.core.decision import Refuse
from raylog.core.groups.coordinator import CoordinatorMachine
from raylog.core.groups.settings import GroupSettings
from raylog.core.received import Received
from raylog.core.transactions.coordinator import TransactionMachine
from raylog.core.transactions.settings import TxnSettings
from raylog.protocol.groups import ListGroupsRequest
from raylog.protocol.message import Message
from raylog.protocol.transactions import TRANSACTION_COORDINATOR, TRANSACTION_METRICS, ListTransactionsRequest
from tests.unit.protocol.samples import PLAIN, of_this_release

TXN_REQUESTS = [
    method.request for method in TRANSACTION_COORDINATOR.methods.values() if method is not TRANSACTION_METRICS
]
LISTS = (ListGroupsRequest, ListTransactionsRequest)
KEYS = [f"key-{number}" for number in range(100)]


def test_each_key_is_of_one_coordinator() -> None:
    shares = [KeyShare(index, 7) for index in range(7)]
    for key in KEYS:
        having = [share.index for share in shares if share.refusal(key) is None]
        assert having == [coordinator_partition(key, 7)]


def test_a_topic_of_one_partition_has_every_key() -> None:
    assert all(EVERY_KEY.refusal(key) is None for key in KEYS)


OWN = coordinator_partition(PLAIN[str], 5)
OTHER = (OWN + 1) % 5


def refusals(kind: type[Message], share: KeyShare) -> list[type[RaylogError]]:
    """What a coordinator with this share refuses a request with."""
    machine: CoordinatorMachine | TransactionMachine
    event: Any
    message = msgspec.convert(of_this_release(kind), kind)
    if kind in GROUP_EVENTS:
        machine = CoordinatorMachine(settings=GroupSettings(), share=share, new_member_id=str)
        event = GROUP_EVENTS[kind].make(message, request=1, now_ms=1)
    else:
        machine = TransactionMachine(settings=TxnSettings(), share=share)
        event = Received(message=message, cause="test", request=1, now_ms=1)
    machine.loaded(0, wall_ms=1)
    out = machine.step(event)
    return [type(each.error) for each in (*out.now, *out.after_sync) if isinstance(each, Refuse)]


@pytest.mark.parametrize("kind", [*GROUP_EVENTS, *TXN_REQUESTS], ids=lambda kind: kind.__name__)
def test_every_method_is_refused_for_the_key_of_another_coordinator(kind: type[Message]) -> None:
    assert refusals(kind, KeyShare(OTHER, 5)) == [NotCoordinator]
    assert NotCoordinator not in refusals(kind, KeyShare(7 if kind in LISTS else OWN, 8 if kind in LISTS else 5))


def test_a_list_may_be_requested_of_any_coordinator() -> None:
    assert KeyShare(3, 5).list_refusal(-1) is None
