"""The built-in assignors by name, the reading of `partition_assignment_strategy`, the check of an assignor's result.

Invariants of the built-in ones: every existing partition of a subscribed topic goes to exactly one of its subscribers
(`cooperative-sticky`: or to none, while another member still owns it); no member gets a partition of a topic that it
does not subscribe to; the result depends only on the arguments, not on their order. Called by a group's leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Final

from raylog.base.errors import AssignorFailed, InconsistentGroupProtocol, InvalidConfig, did_you_mean
from raylog.base.ids import TopicPartition
from raylog.client.assignor import Assignment, PartitionAssignor, RebalanceProtocol, Subscription
from raylog.client.group.members import in_order, subscribers_of
from raylog.client.group.sticky import CooperativeStickyAssignor, StickyAssignor
from raylog.client.user_code import USER_ERRORS


class RangeAssignor(PartitionAssignor):
    """Per topic, each subscriber gets one range of partitions; the first subscribers get one more if it is uneven.

    Topics with the same count and subscribers are divided alike: partition n of all of them goes to the same member,
    which can therefore join their records by key.
    """

    name: ClassVar[str] = "range"

    def assign(self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignment:
        """Divide each topic's partitions into ranges."""
        result: Assignment = {member: [] for member in subscriptions}
        for topic, members in subscribers_of(subscriptions, partition_counts).items():
            each, extra = divmod(partition_counts[topic], len(members))
            start = 0
            for place, member in enumerate(members):
                end = start + each + (1 if place < extra else 0)
                result[member].extend(TopicPartition(topic, number) for number in range(start, end))
                start = end
        return result


class RoundRobinAssignor(PartitionAssignor):
    """Deals the partitions of all topics one by one to the members in turn, skipping those that do not subscribe."""

    name: ClassVar[str] = "roundrobin"

    def assign(self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignment:
        """Deal the partitions to the members in turn."""
        result: Assignment = {member: [] for member in subscriptions}
        wanted = {member: frozenset(subscription.topics) for member, subscription in subscriptions.items()}
        order = in_order(subscriptions)
        turn = 0
        for topic in subscribers_of(subscriptions, partition_counts):
            for number in range(partition_counts[topic]):
                while topic not in wanted[order[turn % len(order)]]:
                    turn += 1
                result[order[turn % len(order)]].append(TopicPartition(topic, number))
                turn += 1
        return result


ASSIGNORS: Final[Mapping[str, type[PartitionAssignor]]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
"""The built-in assignors by the names that members vote for."""


def strategies_of(choice: Any) -> tuple[PartitionAssignor, ...]:
    """The assignors that `partition_assignment_strategy` lists, in order.

    An entry is a built-in name, a subclass or object, or the dotted name of one. Raises InvalidConfig for anything
    else, for an empty list, and for two assignors of one name.
    """
    if isinstance(choice, str):
        choice = [name.strip() for name in choice.split(",") if name.strip()]
    entries = list(choice) if isinstance(choice, Iterable) else [choice]
    found = tuple(_made(entry) for entry in entries)
    names = [assignor.name for assignor in found]
    if not found or len(set(names)) < len(names):
        raise InvalidConfig(
            f"partition_assignment_strategy must have at least one assignor, each name once, not {names}."
        )
    return found


def rebalance_protocol_of(assignors: Sequence[PartitionAssignor]) -> RebalanceProtocol:
    """The most advanced protocol that all assignors of a member support, as in Kafka.

    So a member with `cooperative-sticky` and `range` rebalances eagerly. This lets a group change from one to the other
    in two rolling restarts. Raises InvalidConfig if the assignors have no protocol in common.
    """
    common = frozenset.intersection(*(frozenset(each.rebalance_protocols) for each in assignors))
    if not common:
        raise InvalidConfig(
            f"The assignors {[each.name for each in assignors]} have no rebalance protocol in common; name those alone "
            "that are eager, or those that are cooperative."
        )
    return max(common)


def assign(
    assignors: Iterable[PartitionAssignor],
    name: str,
    subscriptions: Mapping[str, Subscription],
    partition_counts: Mapping[str, int],
    *,
    is_cooperative: bool = False,
) -> Assignment:
    """Run the assignor of that name, and check its result. Topics that are not in `partition_counts` get no assignment.

    `is_cooperative`: members keep their partitions during the rebalance. Raises InconsistentGroupProtocol if there is
    no such assignor, AssignorFailed if it raises or returns an invalid assignment.
    """
    known = {each.name: each for each in assignors}
    if name not in known:
        raise InconsistentGroupProtocol(did_you_mean("assignor", name, known))
    try:
        returned = known[name].assign(subscriptions, partition_counts)
        given = {member: list(dict.fromkeys(TopicPartition(*each) for each in returned[member])) for member in returned}
    except USER_ERRORS as error:  # the user's class may raise anything
        raise AssignorFailed(
            f"The assignor {name!r} raised ({type(error).__name__}: {error}); no partition was assigned. Correct its "
            "assign(): it returns partitions by member id.",
            assignor=name,
        ) from error
    wrong = _fault(given, subscriptions, partition_counts, is_cooperative=is_cooperative)
    if wrong is not None:
        raise AssignorFailed(
            f"The assignor {name!r} {wrong}; no partition was assigned. Correct its assign().", assignor=name
        )
    return {member: given.get(member, []) for member in subscriptions}


def _fault(
    given: Assignment,
    subscriptions: Mapping[str, Subscription],
    partition_counts: Mapping[str, int],
    *,
    is_cooperative: bool,
) -> str | None:
    """Describe what is wrong with an assignment; None = nothing."""
    owners = {partition: member for member, each in subscriptions.items() for partition in each.owned if is_cooperative}
    for member, partitions in given.items():
        if member not in subscriptions:
            return f"gave partitions to {member!r}, which is no member of the group"
        for topic, number in partitions:
            if topic not in subscriptions[member].topics:
                return f"gave {topic}-{number} to {member!r}, which does not subscribe to it"
            if not 0 <= number < partition_counts.get(topic, 0):
                return f"gave {topic}-{number} to {member!r}, and there is no such partition"
            owner = owners.get(TopicPartition(topic, number), member)
            has_it = TopicPartition(topic, number) in subscriptions[member].owned
            if owner != member and not has_it:
                return f"is cooperative, and gave {topic}-{number} to {member!r} while {owner!r} still owns it"
    return None


def _made(entry: Any) -> PartitionAssignor:
    made = _named(entry) if isinstance(entry, str) else entry
    try:
        made = made() if isinstance(made, type) else made
    except Exception as error:  # any error of the user's class
        raise InvalidConfig(f"The assignor {entry!r:.100} cannot be made: {error}") from error
    if not isinstance(made, PartitionAssignor):
        raise InvalidConfig(
            "partition_assignment_strategy takes names, and subclasses of raylog.PartitionAssignor, not "
            f"{entry!r:.100}."
        )
    if not isinstance(getattr(made, "name", None), str) or not made.name:
        raise InvalidConfig(f"The assignor {entry!r:.100} has no name; members agree on one by its `name`.")
    return made


def _named(name: str) -> Any:
    if name in ASSIGNORS:
        return ASSIGNORS[name]
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if not module:
        hint = did_you_mean("assignor", name, ASSIGNORS)
        raise InvalidConfig(f"{hint} An assignor of your own is given as its class, or as package.module.Class.")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfig(
            f"The assignor {name!r} cannot be imported ({error}); write it as package.module.Class."
        ) from error
