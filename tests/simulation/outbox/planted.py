"""Bugs planted in the outbox; a few seeds must catch each of them."""

from __future__ import annotations

from typing import Any

from raylog.core import lane
from raylog.outbox import engines, inbox, relay, store
from raylog.outbox.lane import OutboxLane
from raylog.outbox.planning import Planner
from raylog.outbox.store import OutboxStore
from raylog.storage.log.producer_state import ProducerState
from tests.simulation.outbox.runs import OUTBOX
from tests.simulation.planted.bugs import Planted, bugs


def _always(*_: Any, **__: Any) -> bool:
    return True


OUTBOX_BUGS: tuple[Planted, ...] = (
    *bugs(
        OUTBOX,
        ("O0", "O1", "O2", "O3"),
        ("batches are sent without being written down", 5, OutboxStore, "turn", "if params:", "if params and False:"),
        (
            "the fence is not checked",
            15,
            store,
            "_is_held",
            "lease.c.owner == owner, lease.c.fence == held.fence",
            "lease.c.fence >= 0",
        ),
        (
            "an event is marked when it is sent",
            5,
            OutboxLane,
            "take_changes",
            "self._offsets.pop(batch.number)) for batch in self._lane.forget_stored()",
            "self._offsets.pop(batch.number, -1)) for batch in self._lane.forget(self._lane.is_under_way)",
        ),
        ("seven batches of a lane are unmarked", 20, lane, "BATCHES_MAX", 7),
        (
            "partitions forget a lasting producer",
            20,
            ProducerState,
            "expire",
            "and key < LASTING_PRODUCERS",
            "and key >= 0",
        ),
        ("a restored database is believed", 40, OutboxLane, "_follows", _always),
        (
            "rows of a key go to any lane",
            5,
            Planner,
            "_lane_of",
            "partition_for_key(row.key, topic.partitions)",
            "row.row_id % topic.partitions",
        ),
        (
            "relays of different shards take the same rows",
            10,
            OutboxStore,
            "_candidates",
            "self.shards > 1",
            "self.shards > 100",
        ),
        (
            "events that are due go behind those without a time",
            10,
            OutboxStore,
            "_candidates",
            "order = [outbox.c.id]",
            "order = [outbox.c.deliver_at, outbox.c.id]",
        ),
        (
            "an error of the driver's own ends the relay",
            10,
            engines,
            "_translated",
            "if error is of_block or not",
            "if True or not",
        ),
        (
            "a connection that the server has closed ends the relay",
            10,
            relay.OutboxRelay,
            "_keep_shard",
            "except (SQLAlchemyError, RaylogError, TimeoutError)",
            "except (RaylogError, TimeoutError)",
        ),
        ("a failed event does not stop its key", 20, OutboxStore, "_candidates", "state == FAILED", "state == ''"),
        (
            "a failed batch is dropped from its lane",
            10,
            OutboxLane,
            "failed",
            "self._lane.failed(self._batch(number).first_sequence, trouble, now_ms)",
            "self.stored(number, -1)",
        ),
    ),
    *bugs(
        OUTBOX,
        ("O4",),
        ("an inbox takes a note that is there for a new one", 5, inbox, "_insert_new", _always),
        (
            "an inbox by position handles what it has passed",
            5,
            inbox.Inbox,
            "_advance",
            "positions.c.next_offset <= record.offset",
            "positions.c.next_offset >= 0",
        ),
    ),
)
