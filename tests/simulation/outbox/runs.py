"""One seed of the outbox, and its result."""

from __future__ import annotations

import logging
import time
from unittest.mock import patch

from raylog.base.invariants import InvariantBroken
from tests.simulation.outbox.loop import run
from tests.simulation.outbox.world import OutboxWorld
from tests.simulation.results import Result
from tests.simulation.world import Violation

OUTBOX = "outbox"


def run_outbox(seed: int) -> Result:
    """Run one seed to its end or to the first violation."""
    began = time.process_time()
    world = OutboxWorld(seed)
    loggers = [logging.getLogger(name) for name in ("raylog.outbox", "sqlalchemy.pool")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with patch("raylog.outbox.adding.now_ms", lambda: int(world.now_s * 1000)):
            run(world.play())
    except InvariantBroken as broken:
        world.violated(Violation("O0", str(broken)))
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        world.close()
    violation = world.violation
    return Result(
        seed=seed,
        profile=OUTBOX,
        violation=violation,
        story=world.story[-200:] + ([] if violation is None else [f"VIOLATION {violation}"]),
        events=world.calls,
        steps=world.calls,
        elections=world.kills,
        acks=len(world.places),
        committed=len(world.places),
        lost=False,
        trace=world.trace,
        seconds=time.process_time() - began,
    )
