"""Settings of a transaction coordinator. Made by the shell from the cluster's configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnSettings:
    """Limits and waits of all transactions of one coordinator; times are milliseconds."""

    max_timeout_ms: int = 900_000
    """The longest timeout that a producer may request."""
    two_phase_commit: bool = True
    """Whether a producer may have transactions that never time out."""
    id_expiration_ms: int = 7 * 24 * 3_600_000
    """How long a transactional id without an open transaction is kept after its last record."""
    expiration_check_ms: int = 3_600_000
    """Interval of the check for unused ids."""
    ids_max: int = 100_000
    """Most transactional ids of a coordinator."""
    prefix_ids_max: int = 10_000
    """Most transactional ids that begin with the prefix of a token."""
    prefix_participants_max: int = 100_000
    """Most partitions and groups in the open transactions of a token's prefix."""
    wait_ms: int = 5_000
    """How long a request waits for the previous transaction to end; then it is refused, and the client repeats it."""
    producer_ids: int = 100
    """How many producer ids are taken from the controller at a time."""
    producer_ids_retry_ms: int = 500
    """Pause before producer ids that were not granted are requested again."""
    record_bytes_max: int = 1_000_000
    """Largest record that `__transaction_state` takes: a transaction with all its partitions and groups."""
    sleep_after_ms: int = -1
    """A coordinator without open transactions ends after so long without use; -1 = never."""
