"""One seed of the profile `storage`, `storage-cleaner` or `storage-transactions`, and its result."""

from __future__ import annotations

import time

from raylog.base.errors import RaylogError
from tests.simulation.results import Result
from tests.simulation.storage.run import StorageRun
from tests.simulation.storage.transactions.run import TransactionRun
from tests.simulation.world import Violation

STORAGE = "storage"
STORAGE_CLEANER = "storage-cleaner"
"""The same with a cleaner, for compacted logs."""
STORAGE_TRANSACTIONS = "storage-transactions"
"""The same with transactions, in part of the seeds with a cleaner."""
STORAGE_PROFILES = (STORAGE, STORAGE_CLEANER, STORAGE_TRANSACTIONS)


def run_storage(seed: int, profile: str = STORAGE) -> Result:
    """Run a seed to its end or to the first violation; an error without an injected cause is one."""
    began = time.process_time()
    transacts = profile == STORAGE_TRANSACTIONS
    run = TransactionRun(seed) if transacts else StorageRun(seed, cleans=profile == STORAGE_CLEANER)
    violation: Violation | None = None
    try:
        run.run()
    except Violation as found:
        violation = found
    except RaylogError as error:
        violation = Violation("S2", f"what was appended cannot be read: {error}")
    except Exception as error:
        violation = Violation("S10", f"{type(error).__name__}: {error}")
    if violation is not None:
        run.note(f"VIOLATION {violation}")
    return Result(
        seed=seed,
        profile=profile,
        violation=violation,
        story=list(run.story),
        events=run.events + run.disk.changes,
        steps=run.events,
        elections=0,
        acks=run.appends,
        committed=run.serial,
        lost=False,
        trace=run.trace,
        seconds=time.process_time() - began,
    )
