"""What must hold of the replicas that brokers have awake (W29). Called by `observer.py`; changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import WakeRequested
from raylog.core.sleeping.changes import Sleeping
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

RULE: Final = "W29"


class RoomClaims:
    """Watches the wakes that are requested: none may leave a broker with more replicas awake than it may have."""

    def __init__(self, world: World) -> None:
        """Watch all controllers from now on."""
        wake: Callable[[Sleeping, WakeRequested, ControllerDecision], None] = Sleeping.wake

        def checked(sleeping: Sleeping, event: WakeRequested, decision: ControllerDecision) -> None:
            image = decision.image
            before = dict(image.awake)
            wake(sleeping, event, decision)
            for broker, count in image.awake.items():
                bound = image.awake_bound(broker)
                if bound is not None and count > max(bound.limit, before.get(broker, 0)):
                    claim = f"broker {broker} has {count} replicas awake and may have {bound.limit} ({bound.why})"
                    world.fail(Violation(RULE, f"a wake of {event.topic} was granted, and {claim}"))

        Sleeping.wake = checked  # type: ignore[assignment, method-assign]
