"""One step's decision of a coordinator of any kind: what it writes, and when its answers may leave. Pure.

A coordinator that was deposed without knowing it lacks its successor's rows, and its own rows are refused. So an answer
that depends on the stored state waits until a row is stored that was queued after the request: that proves that there
is no successor (ADR 0131). The same holds for refusals, except those after which the sender repeats its request, and
those that depend on the request alone.
"""

from __future__ import annotations

from typing import Any, Generic

from raylog.base.errors import RaylogError
from raylog.core.coordinators.events import ProposeSleep, StoreProof
from raylog.core.decision import LoggedDecision, RecordT, Refuse, Reply, RequestId, Result


class CoordinatorDecision(LoggedDecision[Any, RecordT], Generic[RecordT]):
    """Records, and answers that wait for them."""

    __slots__ = ()

    def reply(self, request: RequestId, result: Result) -> None:
        """Answer the request once everything written so far is stored."""
        self.after_sync.append(Reply(cause=self.cause, request=request, result=result))

    def reply_proved(self, request: RequestId, result: Result) -> None:
        """Answer the request with what is stored, once it is proved that no later incarnation has begun."""
        self._prove()
        self.reply(request, result)

    def refuse(self, request: RequestId, error: RaylogError) -> None:
        """Refuse the request: at once if the error is retriable, else as :meth:`refuse_proved`."""
        if error.retriable:
            self.refuse_at_once(request, error)
        else:
            self.refuse_proved(request, error)

    def refuse_proved(self, request: RequestId, error: RaylogError) -> None:
        """Refuse the request because of what is stored, once it is proved that no later incarnation has begun."""
        self._prove()
        self.after_sync.append(Refuse(cause=self.cause, request=request, error=error))

    def refuse_at_once(self, request: RequestId, error: RaylogError) -> None:
        """Refuse the request at once: the error holds whatever is stored, or its sender will repeat the request."""
        self.now.append(Refuse(cause=self.cause, request=request, error=error))

    def propose_sleep(self) -> None:
        """Propose that the coordinator ends, once everything written so far is stored."""
        self.after_sync.append(ProposeSleep(cause=self.cause))

    def _prove(self) -> None:
        self.now.append(StoreProof(cause=self.cause))
