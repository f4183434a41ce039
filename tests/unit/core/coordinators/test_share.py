"""A coordinator serves the keys of its own partition only."""

from typing import Any, get_args

import msgspec
import pytest

from raylog.base.errors import NotCoordinator, RaylogError
from raylog.core.coordinators.hashing import coordinator_partition
from raylog.core.coordinators.share import EVERY_KEY, CoordinatorKeys
from raylog.core.decision import Refuse
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.events import GroupMessage
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
GROUP_MESSAGES = get_args(GroupMessage)
KEYS = [f"key-{number}" for number in range(100)]


def test_each_key_is_of_one_coordinator() -> None:
    shares = [CoordinatorKeys(index, 7) for index in range(7)]
    for key in KEYS:
        having = [share.index for share in shares if share.refusal(key) is None]
        assert having == [coordinator_partition(key, 7)]


def test_a_topic_of_one_partition_has_every_key() -> None:
    assert all(EVERY_KEY.refusal(key) is None for key in KEYS)


OWN = coordinator_partition(PLAIN[str], 5)
OTHER = (OWN + 1) % 5


def refusals(kind: type[Message], share: CoordinatorKeys) -> list[type[RaylogError]]:
    """What a coordinator with this share refuses a request with."""
    machine: GroupCoordinatorMachine | TransactionMachine
    if kind in GROUP_MESSAGES:
        machine = GroupCoordinatorMachine(settings=GroupSettings(), share=share, new_member_id=str)
    else:
        machine = TransactionMachine(settings=TxnSettings(), share=share)
    machine.loaded(0, wall_ms=1)
    message = msgspec.convert(of_this_release(kind), kind, builtin_types=(bytes,))
    out = machine.step(Received[Any](message=message, cause="test", request=1, now_ms=1))
    return [type(each.error) for each in (*out.now, *out.after_sync) if isinstance(each, Refuse)]


@pytest.mark.parametrize("kind", [*GROUP_MESSAGES, *TXN_REQUESTS], ids=lambda kind: kind.__name__)
def test_every_method_is_refused_for_the_key_of_another_coordinator(kind: type[Message]) -> None:
    assert refusals(kind, CoordinatorKeys(OTHER, 5)) == [NotCoordinator]
    assert NotCoordinator not in refusals(kind, CoordinatorKeys(7 if kind in LISTS else OWN, 8 if kind in LISTS else 5))


def test_a_list_may_be_requested_of_any_coordinator() -> None:
    assert CoordinatorKeys(3, 5).list_refusal(-1) is None
