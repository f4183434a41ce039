"""A client outside the groups: an administrator, and one that sends requests which must be refused."""

from __future__ import annotations

from typing import Any, Final

from raylog.base.errors import MemberIdRequired, RaylogError
from tests.simulation.groups.coordinator import PROBE_ROUND_MS
from tests.simulation.groups.member import REQUEST_MS, Member, Then
from tests.simulation.groups.topic import ELSE_ID, ELSEWHERE, OTHER_ID, TOPIC, TOPIC_ID

_STRANGER: Final = "stranger"
"""An id that no coordinator has issued."""
_NOTES: Final = ("", "", "note", "\u00e9" * 6, "\u00e9" * 7)
"""Notes beside offsets; the last one has more bytes than are allowed, and not more characters."""
_BEATS: Final = 12
_BEAT_MS: Final = 150


class Outsider(Member):
    """Resets a group's offsets, which only an empty group allows, uses groups as ledgers, and removes members."""

    last_offset = 0
    given: tuple[str, str] = ("", _STRANGER)
    """The group and the member id of its last first join without an instance."""

    def reset(self, to: dict[int, int]) -> None:
        """Commit without a member."""
        rows: list[object] = [[TOPIC_ID, TOPIC, partition, offset, -1, ""] for partition, offset in to.items()]
        self.moved_back.add(self._last_number + 1)
        self._send("offset_commit", [self.group, -1, "", rows])

    def reset_as_planned(
        self, group: str, generation: int, before: dict[tuple[str, str, int], int], to: list[int]
    ) -> None:
        """Reset these offsets, from what was committed when an operator looked."""
        rows: list[object] = [[*place, offset, before[place]] for place, offset in zip(before, to, strict=True)]
        self.moved_back.add(self._last_number + 1)
        self._send("offset_reset", [group, generation, rows])

    def keep(self, group: str, groups: tuple[str, ...]) -> None:
        """Commit, fetch or delete a ledger's offsets, or describe or delete it, or one of the groups with members.

        The books check the answers.
        """
        choose = self.world.random.choice
        named = choose((group, *groups))
        places = [
            [topic_id, TOPIC, partition]
            for topic_id in (TOPIC_ID, OTHER_ID)
            for partition in range(self.simulation.faults.partitions)
        ]
        places.append([ELSE_ID, ELSEWHERE, 0])
        some = [place for place in places if self.world.chance(0.4)]
        requests: tuple[tuple[int, str, list[object]], ...] = (
            (4, "offset_commit", [group, -1, "", [self._offset_row(place) for place in places]]),
            (3, "offset_fetch", [group, choose((places, None))]),
            (2, "offset_delete", [choose((group, group, named)), some]),
            (1, "describe_group", [named]),
            (1, "list_groups", []),
            (1, "delete_group", [named]),
        )
        _, method, args = self.world.random.choices(requests, [weight for weight, _, _ in requests])[0]
        self._send(method, args)

    def probe(self, group: str) -> None:
        """Send what a member of another time, another member or no member would send, or remove a static member."""
        choose = self.world.random.choice
        image = self.simulation.books.images.get(group)
        generation = image.generation if image is not None else 0
        members = [(row.member_id, row.instance_id) for row in image.members] if image is not None else []
        member_id, instance = choose(members) if members else (_STRANGER, None)
        held = choose([None, "instance-0", *(instance for _, instance in members)])
        claims: tuple[tuple[int, str, str | None], ...] = (
            (generation - 1, member_id, instance),
            (generation + 1_000, member_id, instance),
            (generation, _STRANGER, None),
            (generation, _STRANGER, held),
            (generation, member_id, "nothing"),
        )
        number, member, claimed = choose(claims)
        offset = [[TOPIC_ID, TOPIC, 0, 0, -1, ""], [ELSE_ID, ELSEWHERE, 0, 0, -1, ""]]
        leaves = [["", held]] if self.world.chance(0.1) else [[_STRANGER, held], [_STRANGER, None]]
        requests: tuple[tuple[str, list[Any]], ...] = (
            ("heartbeat", [group, number, member, claimed]),
            ("heartbeat", [group, generation, member_id, instance]),
            ("sync_group", [group, number, member, claimed, []]),
            ("offset_commit", [group, max(number, 0), member, offset, claimed]),
            ("join_group", self._join_of(group, _STRANGER, held)),
            ("join_group", self._join_of(group, "", "no-instance", session_ms=1)),
            ("join_group", self._join_of(group, "", "no-instance", protocols=())),
            ("join_group", self._join_of(group, "", "no-instance", protocols=("none",))),
            ("offset_fetch", ["", None]),
            ("leave_group", [group, leaves]),
            ("offset_commit", [group, max(generation, 0), member_id, offset, instance]),
            ("leave_group", [self.given[0], [[self.given[1], None]]]),
        )
        method, args = choose(requests)
        if method == "offset_commit":
            self.moved_back.add(self._last_number + 1)
        self._send(method, args)
        if method == "leave_group" and self.given[1] == args[1][0][0]:
            self._send("join_group", self._join_of(self.given[0], self.given[1], None))
        self._come(group)

    def _come(self, group: str) -> None:
        """Get member ids and leave them unused, or become a member that sends heartbeats and does not sync."""
        if self.world.chance(0.4):
            for _ in range(self.world.random.randint(1, 3)):
                self._call("join_group", self._join_of(group, "", None), REQUEST_MS, self._takes_id(group))
        elif self.world.chance(0.3) and self.given[0]:
            known, member_id = self.given
            args = self._join_of(known, member_id, None)
            self._call("join_group", args, 2 * PROBE_ROUND_MS, lambda result, _: self._linger(known, result, _BEATS))

    def _takes_id(self, group: str) -> Then:
        def answered(_: Any, error: RaylogError | None) -> None:
            if isinstance(error, MemberIdRequired):
                self.given = (group, str(error.details["member_id"]))

        return answered

    def _linger(self, group: str, joined: Any, beats: int) -> None:
        if joined is not None and beats and not self.simulation.is_calm:
            self._send("heartbeat", [group, joined[0], joined[3], None])
            self.world.after(1000 * _BEAT_MS, self._linger, group, joined, beats - 1)

    def _join_of(
        self,
        group: str,
        member_id: str,
        instance: str | None,
        *,
        session_ms: int = 600,
        protocols: tuple[str, ...] = ("range",),
    ) -> list[object]:
        rows = [[name, b""] for name in protocols]
        return [group, member_id, instance, "admin", session_ms, PROBE_ROUND_MS, "consumer", rows]

    def _offset_row(self, place: list[Any]) -> list[object]:
        self.last_offset += 1
        offset = -1 if self.world.chance(0.05) else self.last_offset
        return [*place, offset, self.world.random.randint(-1, 5), self.world.random.choice(_NOTES)]

    def _send(self, method: str, args: list[object]) -> None:
        self._call(method, args, REQUEST_MS, lambda _, __: None)
