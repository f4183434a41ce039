"""Chooses the first voters of a new cluster's metadata log, its founders, and notes the voters in the data directory.

The file ``metadata-voters`` lies beside ``cluster-id`` in the cluster's data directory and holds broker ids. It shows
that the cluster was created, and which brokers were voters at the last start; the current voters are in the metadata
log. On a Ray cluster of several nodes this module gives the founders' directories their broker ids, before there is a
controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from raylog.base.errors import DataDirectoryError
from raylog.launch.private_files import write_private

VOTERS: Final = "metadata-voters"
ANSWER_TIMEOUT_S: Final = 60.0


def kept_voters(root: Path) -> tuple[int, ...]:
    """Return the voters as last noted; empty when this data directory does not know a cluster.

    Raises :class:`DataDirectoryError` for a foreign file.
    """
    path = root / VOTERS
    if not path.exists():
        return ()
    text = path.read_text(encoding="ascii", errors="replace").strip()
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise DataDirectoryError(f"{path} should hold ids of brokers, such as 1,2,3, not {text!r:.100}; restore it.")
    return tuple(int(number) for number in numbers)


def keep_voters(root: Path, voters: Sequence[int]) -> tuple[int, ...]:
    """Note the voters durably, unless there are none; returns them."""
    if tuple(voters) == kept_voters(root) or not voters:
        return tuple(voters)
    write_private(root / VOTERS, ",".join(map(str, voters)) + "\n", durable=True)
    return tuple(voters)


def voters_among(brokers: int, most: int) -> int:
    """Return how many of so many brokers vote: an odd number, because one more would not tolerate more losses."""
    count = min(brokers, most)
    return count if count % 2 else count - 1


def found_embedded(folders: Sequence[Path], most: int) -> tuple[int, ...]:
    """Mark the directories of the first embedded brokers, numbered from 1, as founders; returns their numbers."""
    from raylog.actors.metadata.voter_files import make_founder

    count = voters_among(len(folders), most)
    for folder in folders[:count]:
        make_founder(folder)
    return tuple(range(1, count + 1))


def found_on_nodes(handles: Sequence[Any], most: int) -> tuple[int, ...]:
    """Mark the directories of some brokers as founders, and give ids to those without; returns their ids.

    ``handles``: the actors of all brokers of a cluster that has no controller yet.
    """
    import ray

    known: list[int] = ray.get([handle.broker_id.remote() for handle in handles], timeout=ANSWER_TIMEOUT_S)
    free = iter(number for number in range(1, 2 * len(handles) + 1) if number not in known)
    order = sorted(range(len(handles)), key=lambda place: (known[place] < 0, known[place], place))
    chosen = order[: voters_among(len(handles), most)]
    wanted = [known[place] if known[place] >= 0 else next(free) for place in chosen]
    calls = [handles[place].found.remote(number) for place, number in zip(chosen, wanted, strict=True)]
    return tuple(sorted(ray.get(calls, timeout=ANSWER_TIMEOUT_S)))
