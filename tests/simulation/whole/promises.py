"""What voters have promised, over all their lives: a copy of the metadata log never answers below its promise.

Watched where a voter's runner begins and where its replies leave, so below every network and above every disk. Called
by `observer.py`; changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from raylog.actors.metadata.voter_runner import Answer, VoterDisk, VoterRunner
from raylog.core.quorum import VoterMachine
from tests.simulation.world import Violation


class Promises:
    """The highest promise that each copy has sent, by the copy's identity."""

    def __init__(self, fail: Callable[[Violation], None]) -> None:
        """Watch all voters from now on."""
        self._fail = fail
        self._sent: dict[str, int] = {}
        self._watch()

    def _watch(self) -> None:
        begin = VoterRunner.__init__

        def watched(
            runner: VoterRunner,
            machine: VoterMachine,
            disk: VoterDisk,
            *,
            answer: Callable[[Answer], None],
            on_defect: Callable[[str], None],
        ) -> None:
            def noted(reply: Answer) -> None:
                self._check(machine, reply.args.promised, "answers with")
                self._sent[machine.identity] = reply.args.promised
                answer(reply)

            self._check(machine, machine.promised, "begins with")
            begin(runner, machine, disk, answer=noted, on_defect=on_defect)

        VoterRunner.__init__ = watched  # type: ignore[assignment, method-assign]

    def _check(self, machine: VoterMachine, promised: int, does: str) -> None:
        sent = self._sent.get(machine.identity, 0)
        if promised < sent:
            self._fail(
                Violation("W18", f"the voter {machine.identity} has promised epoch {sent}, and {does} {promised}")
            )
