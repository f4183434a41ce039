"""Collects the metrics of one node's transaction coordinators for its page."""

from __future__ import annotations

import logging

from raylog.actors.metrics.collector import Inquiries
from raylog.actors.metrics.groups import PROCESS
from raylog.base.errors import RaylogError
from raylog.core.metadata.image import MetadataImage
from raylog.core.metrics.exposition import Family
from raylog.core.metrics.families import process_families, unreadable_family
from raylog.core.metrics.transactions import CoordinatorFigures, transaction_families
from raylog.core.metrics.usage import usage_from_wire
from raylog.protocol.transactions import TRANSACTION_METRICS

logger = logging.getLogger(__name__)


async def transaction_metrics(inquiries: Inquiries, image: MetadataImage, host: str) -> list[Family]:
    """Return the metrics of the transaction coordinators that run at this address."""
    here = {
        (found.host, found.port): f"{found.kind}-{found.index}"
        for found in image.coordinators.values()
        if found.kind == "transaction" and found.host == host and found.port
    }
    if not here:
        return []
    families: list[Family] = []
    coordinators: dict[str, CoordinatorFigures] = {}
    answers = await inquiries.call({place: (TRANSACTION_METRICS.name, []) for place in here})
    for place, answer in answers.items():
        name = here[place]
        try:
            reported = TRANSACTION_METRICS.read_reply(answer)
            usage = usage_from_wire(dict(reported.process))
        except (RaylogError, ValueError, KeyError, TypeError) as error:
            logger.warning("coordinator %s has figures that cannot be read: %s", name, error)
            continue
        families.extend(process_families(usage, process=PROCESS, coordinator=name))
        families.append(unreadable_family(name, reported.rows_unreadable))
        coordinators[name] = CoordinatorFigures(
            states=reported.states, counters=reported.counters, longest_open_ms=reported.longest_open_ms
        )
    return [*families, *transaction_families(coordinators)]
