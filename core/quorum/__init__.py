"""The metadata quorum's pure core: one log on a few voters, written by one controller at a time through a majority.

- :class:`VoterMachine`: ``step(event)``; writes in ``now``, answers in ``after_sync``.
- :class:`Proposer` with :class:`ProposerSettings`: ``step(event)``; begin with a ``Tick``.
- :class:`LogHistory` and :class:`Span`: the summary of a log by which two logs are compared.
- :func:`put_together` with :class:`Found`: a snapshot and a log as found on disk.
- :func:`majority`, :func:`is_single_change` and :func:`next_members`: configurations and how they change.
- The events and effects are in :mod:`raylog.core.quorum.events`.
"""

from raylog.core.quorum.changes import is_single_change, majority, next_members
from raylog.core.quorum.history import Found, LogHistory, Span, put_together
from raylog.core.quorum.proposer import Proposer, ProposerSettings
from raylog.core.quorum.voter import VoterMachine

__all__ = [
    "Found",
    "LogHistory",
    "Proposer",
    "ProposerSettings",
    "Span",
    "VoterMachine",
    "is_single_change",
    "majority",
    "next_members",
    "put_together",
]
