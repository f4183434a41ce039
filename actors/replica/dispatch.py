"""Passes each request for a replica's log to the right method of its runner. Called by the replica's shell."""

from __future__ import annotations

from typing import Any

from raylog.actors.replica.ports import ReplicaRequest
from raylog.actors.replica.runner import ReplicaRunner
from raylog.actors.timer import LONGEST_MS, TickTimer
from raylog.protocol.replica import (
    DeleteRecordsRequest,
    DescribeProducersRequest,
    FetchNearRequest,
    FetchRequest,
    FindTimesRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    ReplicaFetchRequest,
    WriteTxnMarkersRequest,
)
from raylog.rpc import machine_number


def dispatch(
    runner: ReplicaRunner, ticks: TickTimer, request: ReplicaRequest, args: Any, has_plain: bool = False
) -> bool:
    """Pass a request to the runner, and make ticks frequent enough for its deadline; False: it is not about the log.

    ``has_plain``: the payload is known to be one batch that belongs to no transaction.
    """
    kind = type(args)
    if kind is ProduceRequest:
        if args.timeout_ms < LONGEST_MS:
            ticks.hasten(args.timeout_ms)
        runner.produce(request, args, has_plain)
    elif kind is ReplicaFetchRequest:
        if args.max_wait_ms < LONGEST_MS:
            ticks.hasten(args.max_wait_ms)
        runner.replica_fetch(request, args)
    elif kind is FetchRequest or kind is FetchNearRequest:
        if args.max_wait_ms < LONGEST_MS:
            ticks.hasten(args.max_wait_ms)
        runner.fetch(request, args, is_near=kind is FetchNearRequest and args.machine == machine_number())
    elif kind is DeleteRecordsRequest:
        ticks.hasten()
        runner.delete_records(request, args)
    elif kind is ListOffsetsRequest:
        runner.list_offsets(request, args)
    elif kind is FindTimesRequest:
        runner.find_times(request, args)
    elif kind is OffsetForLeaderEpochRequest:
        runner.epoch_end(request, args)
    elif kind is WriteTxnMarkersRequest:
        ticks.hasten()
        runner.write_marker(request, args)
    elif kind is DescribeProducersRequest:
        runner.describe_producers(request, args)
    else:
        return False
    return True
