"""What is sent of a delayed record whose target does not take it."""

from __future__ import annotations

from raylog.actors.scheduling.bodies import Body, encode
from raylog.core.dead_letters import Cause, Reason, cause_of
from raylog.core.queues.archiving.origins import Origin
from raylog.core.scheduling.envelope import Envelope, Header
from raylog.core.scheduling.keys import key_of
from raylog.core.scheduling.rows import Batch
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import decode_batch

OFFSET = 5


def undeliverable(*headers: Header) -> tuple[Cause | None, list[str]]:
    """Send a record to ``__undeliverable``; returns its cause and the names of its headers."""
    body = Body(OFFSET, None, b"value", headers)
    batch = Batch("__undeliverable", ("id", 0), 0, 0, (key_of(1_000, OFFSET),))
    made = encode([body], batch, (9, 0), adds_sent_time=False, causes={OFFSET: (Reason.UNDELIVERABLE, "refused")})
    ((position, header),) = iter_headers(made)
    found = (decode_batch(made, position, header).headers or [])[0] or []
    return cause_of(found), [name for name, _ in found]


def test_the_dead_letter_of_a_late_retry_names_the_record_itself() -> None:
    envelope = Envelope("retry.workers.jobs", "id", 2, 1).header()
    cause, names = undeliverable(Origin("jobs", 4, 77, 3).header(), envelope)
    assert cause is not None
    assert (cause.topic, cause.partition, cause.offset) == ("jobs", 4, 77)
    assert not any(name.startswith("raylog-retry") for name in names)


def test_another_record_cannot_name_an_origin() -> None:
    cause, _ = undeliverable(Origin("secret", 0, 1, 1).header(), Envelope("mine", "id", 2, 1).header())
    assert cause is not None
    assert (cause.topic, cause.partition) == ("mine", 2)
