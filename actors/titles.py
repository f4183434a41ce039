"""Process titles for ``ps``, ``top`` and Ray, with the name of the actor. Ray alone would show the actor's class.

``ps`` shows ``ray::Replica flights-0 broker 2``. ``top`` shows the short name ``flights-0@2``, which has at most 15
characters: of a longer name, the end of the topic's part is cut off.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

SHORT_CHARACTERS: Final = 15


def replica_titles(topic: str, partition: int, broker: int) -> tuple[str, str]:
    """Return title and short name of a replica's process."""
    tail = f"-{partition}@{broker}"
    return f"ray::Replica {topic}-{partition} broker {broker}", topic[: max(0, SHORT_CHARACTERS - len(tail))] + tail


def broker_title(name: str, awake: int, dozing: int, asleep: int) -> str:
    """Return the title of a broker's process; it counts the replicas, of which some are stopped or have no process."""
    return f"ray::Broker {name} ({awake} replicas awake, {dozing} dozing, {asleep} asleep)"


def wear(title: str, short: str) -> None:
    """Show this process under that title from now on. Does nothing where Ray or the system cannot do it.

    Ray changes the title of a worker's process at each call that it serves. So the function that Ray uses for this is
    replaced by one that does nothing.
    """
    import ray

    raylet = getattr(ray, "_raylet", None)
    setproctitle = getattr(raylet, "setproctitle", None)
    if raylet is None or setproctitle is None:
        return
    original = getattr(setproctitle, "original", setproctitle)
    original(title)

    def keep(_: str) -> None:
        """Leave the title as it is."""

    keep.original = original  # type: ignore[attr-defined]  # to change it again
    with suppress(AttributeError, TypeError):  # if the module cannot be changed, the title lasts until the next call
        raylet.setproctitle = keep
    with suppress(OSError):
        Path("/proc/self/comm").write_text(short)
