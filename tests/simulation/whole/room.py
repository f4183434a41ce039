"""What must hold of the replicas that brokers have awake (W29). Called by `observer.py`; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import WakeRequested
from raylog.core.ids import BrokerId
from raylog.core.metadata.image import MetadataImage
from raylog.core.sleeping.changes import Sleeping
from raylog.core.sleeping.queue import WakeQueue
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

RULE: Final = "W29"


class RoomClaims:
    """Watches all wakes: none may leave a broker with more replicas awake than it may have."""

    def __init__(self, world: World) -> None:
        """Watch all controllers from now on."""
        wake: Callable[[Sleeping, WakeRequested, ControllerDecision], None] = Sleeping.wake
        take: Callable[[WakeQueue, ControllerDecision], None] = WakeQueue.time_passed

        def checked(sleeping: Sleeping, event: WakeRequested, decision: ControllerDecision) -> None:
            before = dict(decision.image.awake)
            wake(sleeping, event, decision)
            self._check(f"a wake of {event.topic} was granted", decision.image, before)

        def checked_queue(wakes: WakeQueue, decision: ControllerDecision) -> None:
            before = dict(decision.image.awake)
            take(wakes, decision)
            self._check("what waited to wake was woken", decision.image, before)

        self._world = world
        Sleeping.wake = checked  # type: ignore[assignment, method-assign]
        WakeQueue.time_passed = checked_queue  # type: ignore[assignment, method-assign]

    def _check(self, what: str, image: MetadataImage, before: Mapping[BrokerId, int]) -> None:
        for broker, count in image.awake.items():
            bound = image.awake_bound(broker)
            if bound is not None and count > max(bound.limit, before.get(broker, 0)):
                claim = f"broker {broker} has {count} replicas awake and may have {bound.limit} ({bound.why})"
                self._world.fail(Violation(RULE, f"{what}, and {claim}"))
