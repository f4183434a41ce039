"""I15 as small books outside the system: contents of the offsets topic, answers sent to members, and members' claims.

``coordinator.py``, ``topic.py`` and ``member.py`` report what an observer of messages, the log and the clients could
see; test_group_books.py reports hand-made histories. The books never look into a machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raylog.client.group.embedded_protocol import decode_assignment
from raylog.core.groups.records import GROUP_ROWS, GroupChanged, MemberRecord, OffsetCommitted, OffsetKey
from raylog.core.groups.states import GroupState
from raylog.protocol.rows import Tombstone
from tests.simulation.groups.operators import why_kept
from tests.simulation.groups.ownership import superseded, taken_too_early, withheld
from tests.simulation.groups.topic import TOPIC_ID, Row, Sender
from tests.simulation.world import Violation

RULE = "I15"
WALL_AHEAD_MS = 1_700_000_000_000
"""How far the time of day is ahead of the virtual clock."""

Place = tuple[str, int, str]
"""Group, partition and topic id."""


_UNKNOWN = Sender(0, "", -1, moved_back=True)
EXPIRY_MS = 2_500
"""Deadline after an offset's retention for its expiry, while a coordinator runs."""


LONG_AGO_MS = -(10**9)
"""When a member was active last that may have been removed by its instance: it need not stay, not even after a load."""


class Claim(NamedTuple):
    """The partitions that a member process claims to read."""

    group: str
    member_id: str
    generation: int
    partitions: frozenset[int]
    joined_with: Mapping[str, bytes] = {}
    """The metadata of its last join, by assignor, where it holds its partitions while it joins."""


@dataclass(slots=True)
class _Offset:
    """The commits of one partition in log order: (offset in the log, committed offset or -1 = deleted, sender)."""

    commits: list[tuple[int, int, Sender]] = field(default_factory=list)
    processed: int = 0
    """Some member has read everything below."""
    stored_ms: int = 0
    """When the last commit was decided."""


class GroupBooks:
    """All state that I15 constrains."""

    def __init__(self, partitions: int = 0, retention_ms: int = 0, members_max: int = 10_000) -> None:
        """Begin with an empty log and no member.

        Each generation assigns all of ``partitions`` to at most ``members_max`` members; an offset without members
        expires after ``retention_ms``.
        """
        self._partitions = partitions
        self.members_max = members_max
        self._retention_ms = retention_ms
        self.deletions = 0
        self.images: dict[str, GroupChanged] = {}
        self.generations = 0
        self.commits = 0
        self.acknowledged = 0
        self._begun_ms: dict[str, int] = {}
        self._emptied_ms: dict[str, int] = {}
        self._forgotten_ms: dict[str, int] = {}
        """When the last offset of a group was deleted."""
        self._stable_ms: dict[str, int] = {}
        self._synced: dict[tuple[str, str, int], dict[int, int]] = {}
        """When lives of coordinators sent a member of a generation its assignment, by life."""
        self._claims: dict[int, Claim] = {}
        self._offsets: dict[Place, _Offset] = {}
        self._stored_rows: Counter[tuple[int, int]] = Counter()
        """Rows in the log by life and request."""
        self._resets: dict[tuple[int, int], int] = {}
        """Rows of each reset, by life and request."""
        self._active_ms: dict[tuple[int, str, str], int] = {}
        self._loaded_ms: dict[int, int] = {}
        self._left: set[tuple[str, str]] = set()
        self._notified: dict[int, int] = {}
        self._deleted: dict[str, int] = {}
        """The last generation of groups that were deleted."""
        self._given: dict[str, int] = {}

    # ------------------------------------------------------------ the log

    def stored(self, offset: int, row: Row) -> None:
        """A row is durable in the log."""
        if row.key[0] == "fence":
            return
        self._stored_rows[row.life, row.request] += 1
        match GROUP_ROWS.read(row.key, row.value):
            case GroupChanged() as image:
                self._group_changed(image, row)
            case OffsetCommitted() as commit:
                self._committed(offset, commit, row)
            case Tombstone(kind=kind, key=key) if kind is OffsetCommitted:
                group, topic_id, _, partition = OffsetKey(*key)
                self._offset_deleted(offset, (group, partition, topic_id), row)
            case Tombstone(kind=kind, key=(group,)) if kind is GroupChanged:
                self._group_deleted(str(group), row)

    def _offset_deleted(self, offset: int, place: Place, row: Row) -> None:
        books = self._offsets.get(place)
        if books is None or not books.commits:
            raise Violation(RULE, f"the offset of {place} is deleted, and there is none")
        image = self.images.get(place[0])
        if (why := why_kept(image, place[2], expires=row.sender is None)) is not None:
            raise Violation(RULE, f"the offset of {place} is deleted, though {why}")
        if row.sender is None:
            is_empty = image is None or image.state is GroupState.EMPTY
            since_ms = max(books.stored_ms, self._emptied_ms.get(place[0], 0) if is_empty else 0)
            if row.decided_ms - since_ms < self._retention_ms:
                raise Violation(RULE, f"the offset of {place} is forgotten after {row.decided_ms - since_ms} ms")
        books.commits.append((offset, -1, row.sender or _UNKNOWN))
        self._forgotten_ms[place[0]] = row.decided_ms
        self.deletions += 1

    def _group_deleted(self, group: str, row: Row) -> None:
        self._is_empty(group, "it is deleted")
        left = [place for place in self._offsets if place[0] == group and self.committed(*place) >= 0]
        if left:
            raise Violation(RULE, f"group {group!r} is deleted, and the offsets of {left} are left")
        deleted = self.images.pop(group, None)
        # The next generation of that name is number 1; answers of earlier ones may still be in flight.
        self._deleted[group] = deleted.generation if deleted is not None else 0

    def _is_empty(self, group: str, what: str) -> None:
        image = self.images.get(group)
        if image is not None and image.state is not GroupState.EMPTY:
            raise Violation(RULE, f"{what} while group {group!r} is {image.state.value}")

    def overdue(self, now_ms: int) -> list[Place | str]:
        """Return the offsets whose expiry is overdue, and the groups without members and offsets."""
        kept = {place[0] for place in self._offsets if self.committed(*place) >= 0}
        blank = [
            group
            for group, image in self.images.items()
            if image.state is GroupState.EMPTY
            and group not in kept
            and now_ms - max(self._emptied_ms[group], self._forgotten_ms.get(group, 0)) > EXPIRY_MS
        ]
        return [*blank, *self._overdue_offsets(now_ms)]

    def _overdue_offsets(self, now_ms: int) -> list[Place]:
        return [
            place
            for place, books in self._offsets.items()
            if self.committed(*place) >= 0
            and why_kept(self.images.get(place[0]), place[2], expires=True) is None
            and now_ms - max(books.stored_ms, self._emptied_ms.get(place[0], 0), self._stable_ms.get(place[0], 0))
            > self._retention_ms + EXPIRY_MS
        ]

    def _group_changed(self, image: GroupChanged, row: Row) -> None:
        before = self.images.get(image.group)
        if before is not None:
            if image.generation < before.generation:
                raise Violation(RULE, f"generation {before.generation} is followed by {image.generation}")
            if image.generation == before.generation and before.state is GroupState.STABLE:
                self._same_assignments(before, image)
            if image.generation > before.generation:
                self._no_member_is_dropped(before, image, row)
        owners: dict[int, str] = {}
        for member in image.members:
            for partition in _partitions(member.assignment):
                if partition in owners:
                    raise Violation(
                        RULE,
                        f"generation {image.generation} gives partition {partition} to {owners[partition]} "
                        f"and to {member.member_id}",
                    )
                owners[partition] = member.member_id
        is_assigned = before is None or (before.generation, before.state) != (image.generation, image.state)
        given_out = owners.keys() | withheld(image)
        if image.state is GroupState.STABLE and is_assigned and len(given_out) < self._partitions:
            raise Violation(RULE, f"generation {image.generation} leaves partitions without an owner: {owners}")
        early = taken_too_early(image)
        if early is not None:
            raise Violation(RULE, f"in generation {image.generation} {early}")
        if image != before and image.changed_ms != row.decided_ms + WALL_AHEAD_MS:
            raise Violation(RULE, f"generation {image.generation} is dated {image.changed_ms}")
        if image != before and image.state is GroupState.EMPTY:
            self._emptied_ms[image.group] = row.decided_ms
        if before is None or image.generation > before.generation:
            self.generations += 1
            self._begun_ms[image.group] = row.decided_ms
        if before is None or image.state is not before.state:
            self._stable_ms[image.group] = row.decided_ms
        self.images[image.group] = image
        self._one_owner(image.group)

    def _same_assignments(self, before: GroupChanged, image: GroupChanged) -> None:
        """Within a stable generation only a static member's id may change."""
        if [_row(member) for member in before.members] != [_row(member) for member in image.members]:
            raise Violation(RULE, f"the assignments of generation {image.generation} were changed once given")

    def _no_member_is_dropped(self, before: GroupChanged, image: GroupChanged, row: Row) -> None:
        """A live member that has met its deadlines is in the next generation too.

        A round waits for all live members, up to the rebalance timeout: so each gives up its partitions before others
        get them. A member that does not request its assignment has that long too.
        """
        stay = {member.member_id for member in image.members}
        instances = {member.instance_id for member in image.members if member.instance_id is not None}
        for member in before.members:
            if member.member_id in stay or member.instance_id in instances:
                continue
            why = self.why_alive(row.life, before, member, row.decided_ms)
            if why is not None:
                raise Violation(RULE, f"{why}, and generation {image.generation} is made without it")

    def why_alive(self, life: int, image: GroupChanged, member: MemberRecord, now_ms: int) -> str | None:
        """Return why a member of the last generation must still be a member, or None when it need not be."""
        group, member_id = image.group, member.member_id
        synced = (group, member_id, image.generation) in self._synced
        loaded_ms = self._loaded_ms.get(life, 0)
        since_ms = max((self._stable_ms if synced else self._begun_ms).get(group, now_ms), loaded_ms)
        active_ms = self._active_ms.get((life, group, member_id), loaded_ms)
        # A static member keeps its place in a round that it does not join. A life that was loaded before all had their
        # assignments does not know which members got one from an earlier life.
        synced_ms = self._synced.get((group, member_id, image.generation), {}).get(life, -1)
        knows_it = synced_ms >= loaded_ms or self._stable_ms.get(group, now_ms) <= loaded_ms
        stays = member.instance_id is not None and synced and knows_it and image.state is GroupState.STABLE
        in_time = stays or now_ms - since_ms < member.rebalance_timeout_ms
        if not in_time or now_ms - active_ms >= member.session_timeout_ms or (group, member_id) in self._left:
            return None
        return f"member {member_id} was active {now_ms - active_ms} ms ago and did not leave"

    def _committed(self, offset: int, commit: OffsetCommitted, row: Row) -> None:
        sender, group = row.sender, commit.key.group
        place = (group, commit.key.partition, commit.key.topic_id)
        if commit.committed_ms != row.decided_ms + WALL_AHEAD_MS:
            raise Violation(RULE, f"{commit} is dated wrong")
        if sender is None:
            raise Violation(RULE, f"{commit} is stored, and was not sent")
        image = self.images.get(group)
        if sender.generation >= 0:
            known = image is not None and image.generation == sender.generation
            if image is None or not known or all(member.member_id != sender.member_id for member in image.members):
                raise Violation(
                    RULE,
                    f"a commit of member {sender.member_id!r} of generation {sender.generation} is stored, it is "
                    f"in generation {image.generation if image is not None else 0} or does not know the member",
                )
        elif image is not None and image.members:
            raise Violation(RULE, f"a commit from outside is stored while group {group!r} has members")
        self.commits += 1
        books = self._offsets.setdefault(place, _Offset())
        if books.commits and not sender.moved_back:
            _, known_offset, earlier = books.commits[-1]
            # A commit with an outcome unknown to its sender may still be stored after that sender's later ones.
            if commit.offset < known_offset and earlier[:3] != sender[:3]:
                raise Violation(
                    RULE,
                    f"the committed offset of partition {commit.key.partition} went from {known_offset} back to "
                    f"{commit.offset}, and no client requested that",
                )
        books.commits.append((offset, commit.offset, sender))
        books.stored_ms = row.decided_ms

    # ------------------------------------------------------------ coordinators

    def loaded(self, life: int, now_ms: int) -> None:
        """A life of the coordinator begins to serve: every member has a fresh session timeout."""
        self._loaded_ms[life] = now_ms

    def sent(self, rows: Iterable[Row]) -> None:
        """A coordinator sends a batch to the log, which is stored whole or not at all."""
        counts = Counter((row.life, row.request) for row in rows)
        for decided, count in counts.items():
            if count != self._resets.get(decided, count):
                raise Violation(RULE, f"a batch has {count} of the {self._resets[decided]} rows of a reset")

    def reset_decided(self, life: int, request: int, rows: int) -> None:
        """A coordinator decided to reset so many offsets, which fit into one batch of the log."""
        self._resets[life, request] = rows

    def active(self, life: int, group: str, member_id: str, now_ms: int) -> None:
        """A coordinator counted a member's request as a heartbeat."""
        self._active_ms[life, group, member_id] = now_ms

    def left(self, life: int, group: str) -> None:
        """Members left, perhaps removed by their instances; the image has them until the next generation."""
        image = self.images.get(group)
        for member in image.members if image is not None else ():
            self._active_ms[life, group, member.member_id] = LONG_AGO_MS

    def synced(self, life: int, group: str, member_id: str, generation: int, now_ms: int) -> None:
        """A coordinator decided to send a member its assignment."""
        self._synced.setdefault((group, member_id, generation), {})[life] = now_ms

    def has_synced(self, group: str, member_id: str, generation: int) -> bool:
        """Return whether a coordinator has decided to send a member its assignment."""
        return (group, member_id, generation) in self._synced

    def taken_for_a_stranger(self, life: int, group: str, member_id: str, instance: str, now_ms: int) -> None:
        """A coordinator does not know a static member, which therefore rejoins and replaces the holder of its instance.

        So a replaced process has to be fenced (KIP-345), or it ends its own successor.
        """
        image = self.images.get(group)
        if image is None or image.state is not GroupState.STABLE:
            return
        for holder in image.members:
            active_ms = self._active_ms.get((life, group, holder.member_id))
            if holder.instance_id != instance or holder.member_id == member_id or active_ms is None:
                continue
            # One that did not fetch its assignment is removed when the time for that is over, however active it is.
            is_kept = self.why_alive(life, image, holder, now_ms) is not None
            if is_kept and now_ms - active_ms < holder.session_timeout_ms // 2:
                raise Violation(
                    RULE,
                    f"{member_id} of instance {instance!r} is unknown rather than fenced, though {holder.member_id} "
                    "took its place",
                )

    def leave_requested(self, group: str, member_id: str) -> None:
        """A coordinator received a member's leave request."""
        self._left.add((group, member_id))

    def has_left(self, group: str, member_id: str) -> bool:
        """Return whether a member has left."""
        return (group, member_id) in self._left

    def gave_id(self, member_id: str, process: int) -> None:
        """A coordinator issued a new id to a process."""
        known = self._given.setdefault(member_id, process)
        if known != process:
            raise Violation(RULE, f"member id {member_id!r} was given to two processes")

    def commit_answered(self, life: int, request: int, offsets: int) -> None:
        """A coordinator acknowledges a commit of so many offsets as stored."""
        if self._stored_rows[life, request] < offsets:
            raise Violation(RULE, "a commit was acknowledged before it was stored")
        self.acknowledged += 1

    def generation_answered(self, group: str, generation: int, *, is_stable: bool) -> None:
        """A coordinator sends a member a generation, or its assignment in it."""
        image = self.images.get(group)
        is_there = image is not None and (not is_stable or image.state is GroupState.STABLE)
        written = (image.generation, is_there) if image is not None else (0, False)
        if written < (generation, True) and generation > self._deleted.get(group, 0):
            raise Violation(RULE, f"a member receives generation {generation} before it is stored")

    def offsets_answered(self, group: str, log_end_then: int, rows: Iterable[Sequence[object]]) -> None:
        """The coordinator answered an offset fetch; ``log_end_then`` is the log end offset when the request arrived."""
        for row in rows:
            topic_id, partition, offset = row[0], row[2], row[3]
            assert isinstance(topic_id, str)
            assert isinstance(partition, int)
            books = self._offsets.get((group, partition, topic_id))
            commits = books.commits if books is not None else []
            late = [value for at, value, _ in commits if at >= log_end_then]
            early = [value for at, value, _ in commits if at < log_end_then]
            if offset not in late and offset != (early[-1] if early else -1):
                raise Violation(
                    RULE,
                    f"partition {partition} is reported to be at {offset}, committed is {early[-1] if early else -1}",
                )

    # ------------------------------------------------------------ members

    def joined(self, process: int, generation: int) -> None:
        """A member process received its generation."""
        if generation < self._notified.get(process, 0) and not self._deleted:
            raise Violation(RULE, f"a member of generation {self._notified[process]} received generation {generation}")
        self._notified[process] = generation

    def claims(self, process: int, claim: Claim) -> None:
        """A member process holds these partitions from now on."""
        self._claims[process] = claim
        self._one_owner(claim.group)

    def joins(self, process: int, member_id: str, joined_with: Mapping[str, bytes]) -> None:
        """A member process joins, and holds its partitions meanwhile."""
        if process in self._claims:
            self._claims[process] = self._claims[process]._replace(member_id=member_id, joined_with=joined_with)

    def is_whole(self, group: str) -> bool:
        """Return whether the group's generation assigns every partition, as a description of the group shows."""
        image = self.images.get(group)
        given = {number for member in (image.members if image else ()) for number in _partitions(member.assignment)}
        return len(given) == self._partitions

    def shares(self, group: str) -> set[int]:
        """Return the member processes that hold partitions of the current generation."""
        return set(self.owners(group).values())

    def gives_back(self, process: int) -> None:
        """A member process holds no partitions any more."""
        self._claims.pop(process, None)

    def begins_at(self, group: str, partition: int, offset: int) -> None:
        """A member resumes from a committed offset: some member has read everything below."""
        books = self._offsets.setdefault((group, partition, TOPIC_ID), _Offset())
        if offset > books.processed:
            raise Violation(
                RULE, f"a member begins partition {partition} at {offset}, and [{books.processed}, {offset}) is unread"
            )

    def processed(self, group: str, partition: int, offset: int) -> None:
        """A member has read everything below ``offset``."""
        books = self._offsets[group, partition, TOPIC_ID]
        books.processed = max(books.processed, offset)

    def committed(self, group: str, partition: int, topic_id: str = TOPIC_ID) -> int:
        """Return the committed offset in the log, -1 = none."""
        books = self._offsets.get((group, partition, topic_id))
        return books.commits[-1][1] if books is not None and books.commits else -1

    def owners(self, group: str) -> dict[int, int]:
        """Return the member process of each partition claimed in the current generation."""
        image = self.images.get(group)
        members = {member.member_id: member for member in image.members} if image is not None else {}
        found: dict[int, int] = {}
        for process, claim in self._claims.items():
            member = members.get(claim.member_id)
            if image is None or member is None or claim.group != group:
                continue
            # A cooperative member holds its partitions in the next generation too, if that was made of its last join.
            joined = claim.joined_with.get(image.protocol)
            if claim.generation != image.generation and (not joined or joined != member.metadata(image.protocol)):
                continue
            is_kept = claim.generation != image.generation
            kept = claim.partitions - superseded(image, claim.generation) if is_kept else claim.partitions
            for partition in sorted(kept):
                if partition in found:
                    raise Violation(
                        RULE,
                        f"processes {found[partition]} and {process} both hold partition {partition} "
                        f"in generation {image.generation}",
                    )
                found[partition] = process
        return found

    def _one_owner(self, group: str) -> None:
        self.owners(group)


def _row(member: MemberRecord) -> tuple[object, bytes]:
    return (member.instance_id or member.member_id, member.assignment)


def _partitions(assignment: bytes) -> list[int]:
    return [number for _, number in decode_assignment(assignment)]
