"""Every request of the controller and of a coordinator is one that its machine takes, unless its shell answers it."""

from types import SimpleNamespace
from typing import cast, get_args

import pytest

from raylog.actors.received import ArrivedRequest, received
from raylog.base.errors import InvalidRequest
from raylog.core.controller.events import ControllerRequest
from raylog.core.groups.events import GroupMessage
from raylog.core.transactions.events import TxnRequest
from raylog.protocol.broker import MetadataRequest
from raylog.protocol.controller import CONTROLLER, ControllerMetricsRequest
from raylog.protocol.groups import GROUP_COORDINATOR, CoordinatorMetricsRequest
from raylog.protocol.transactions import TRANSACTION_COORDINATOR, TransactionMetricsRequest

ANSWERED_BY_THE_SHELL = {
    MetadataRequest,
    ControllerMetricsRequest,
    CoordinatorMetricsRequest,
    TransactionMetricsRequest,
}
"""Requests that need no decision of a machine."""


def test_every_request_is_taken_by_a_machine_or_answered_by_the_shell() -> None:
    machines = (
        (CONTROLLER, ControllerRequest),
        (GROUP_COORDINATOR, GroupMessage),
        (TRANSACTION_COORDINATOR, TxnRequest),
    )
    for endpoint, messages in machines:
        requests = {method.request for method in endpoint.methods.values()}
        assert requests - ANSWERED_BY_THE_SHELL == set(get_args(messages))


def test_an_offset_commit_carries_the_instance_id_of_a_static_member() -> None:
    def commit(*fields: object) -> ArrivedRequest:
        args = ["g", 1, "m", [["id", "t", 0, 5, 1, ""]], *fields]
        return cast(
            ArrivedRequest, SimpleNamespace(method="offset_commit", args=args, peer_host="10.0.0.7", grant=None)
        )

    for request, instance in ((commit("i"), "i"), (commit(None), None), (commit(), None)):
        assert received(GROUP_COORDINATOR, request, 1, 2).message.group_instance_id == instance
    with pytest.raises(InvalidRequest, match="'group_instance_id' is wrong"):
        received(GROUP_COORDINATOR, commit(5), 1, 2)
