"""What must hold of the replicas that brokers have awake, and have to start (W29).

Made by `observer.py`; changes nothing but how many starts go on at once, which a small world would never reach, and
how long a rest lasts, which no world would see the end of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from raylog.base.ids import BrokerId
from raylog.core.controller import rest, wake_queue
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.liveness import Liveness
from raylog.core.controller.wake_queue import WakeQueue
from raylog.core.metadata.image import MetadataImage
from raylog.core.received import Received
from raylog.protocol.admin import WakePartitionsRequest
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

RULE: Final = "W29"
STARTS_AT_ONCE: Final = 1
REST_LASTS_MS: Final = 4_000
STARTING: Final = Liveness.starting
"""As it is before a bug is planted in it."""


class RoomClaims:
    """Watches all wakes: none may leave a broker with more replicas awake than it may have.

    And what no request waits for wakes only while each of its brokers has few replicas to start.
    """

    def __init__(self, world: World) -> None:
        """Watch all controllers from now on."""
        wake: Callable[[WakeQueue, Received[WakePartitionsRequest], ControllerDecision], None] = WakeQueue.wake
        take: Callable[[WakeQueue, ControllerDecision], None] = WakeQueue.time_passed
        take_others: Callable[[WakeQueue, ControllerDecision], set[BrokerId]] = WakeQueue._wake_others

        def checked(wakes: WakeQueue, event: Received[WakePartitionsRequest], decision: ControllerDecision) -> None:
            before = dict(decision.image.awake)
            wake(wakes, event, decision)
            self._check(f"a wake of {event.message.topic} was granted", decision.image, before)

        def checked_queue(wakes: WakeQueue, decision: ControllerDecision) -> None:
            before = dict(decision.image.awake)
            take(wakes, decision)
            self._check("what waited to wake was woken", decision.image, before)

        def checked_others(wakes: WakeQueue, decision: ControllerDecision) -> set[BrokerId]:
            before = STARTING(wakes._liveness)
            full = take_others(wakes, decision)
            for broker, count in STARTING(wakes._liveness).items():
                if count > max(STARTS_AT_ONCE, before[broker]):
                    claim = f"broker {broker} has {count} replicas to start, and had {before[broker]}"
                    self._world.fail(Violation(RULE, f"what no request waits for was woken, and {claim}"))
            return full

        self._world = world
        WakeQueue.wake = checked  # type: ignore[assignment, method-assign]
        WakeQueue.time_passed = checked_queue  # type: ignore[assignment, method-assign]
        WakeQueue._wake_others = checked_others  # type: ignore[assignment, method-assign]
        wake_queue.STARTS_AT_ONCE = STARTS_AT_ONCE  # type: ignore[misc]
        rest.LASTS_MS = REST_LASTS_MS  # type: ignore[misc]

    def _check(self, what: str, image: MetadataImage, before: Mapping[BrokerId, int]) -> None:
        for broker, count in image.awake.items():
            bound = image.awake_bound(broker)
            if bound is not None and count > max(bound.limit, before.get(broker, 0)):
                claim = f"broker {broker} has {count} replicas awake and may have {bound.limit} ({bound.why})"
                self._world.fail(Violation(RULE, f"{what}, and {claim}"))
