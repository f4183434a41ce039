"""Loads and saves forwarders' notes at the leader of ``__forwarding``. May touch: the network, through a host."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from raylog.actors.forwarding.places import Place
from raylog.actors.naming import FORWARDING_TOPIC
from raylog.actors.roles.host import RoleHost
from raylog.base.errors import UnsupportedVersion
from raylog.core.forwarding.note import Note
from raylog.protocol.forwarding import LOAD_FORWARDER, SAVE_FORWARDER, LoadForwarderRequest, SaveForwarderRequest

CALL_S: Final = 10.0
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def encode_note(note: Note) -> bytes:
    """Return a note in its stored form."""
    return _encode(note.to_wire())


def decode_note(data: bytes) -> Note:
    """Return the note in this stored form. Raises UnsupportedVersion."""
    try:
        wire: list[Any] = _decode(data)
        return Note.from_wire(wire)
    except (ValueError, TypeError, LookupError, msgspec.MsgspecError) as error:
        raise UnsupportedVersion(
            f"A forwarder's note in {FORWARDING_TOPIC} cannot be read ({error}); another release of Raylog wrote it: "
            "install that release."
        ) from error


class KeptNotes:
    """The notes of a forwarder whose owner is the leader of its source."""

    def __init__(self, host: RoleHost, forwarder: str) -> None:
        """``forwarder``: the name of the forwarder; ``host``: the host of its role."""
        self._host = host
        self._forwarder = forwarder
        self._place: Place | None = None

    async def load(self) -> Note | None:
        """Return the stored note, if any; from now on the keeper refuses earlier owners."""
        place = self._place = await self._find()

        def request(epoch: int) -> LoadForwarderRequest:
            return LoadForwarderRequest(
                place.topic_id, place.partition, epoch, self._forwarder, self._host.leader_epoch
            )

        reply = await self._host.targets.call(place, LOAD_FORWARDER, request, timeout_s=CALL_S)
        return decode_note(reply.note) if reply.note else None

    async def save(self, note: Note) -> None:
        """Store the note. Raises ForwarderFenced, RaylogError, OSError."""
        place = self._place or await self._find()
        data = encode_note(note)

        def request(epoch: int) -> SaveForwarderRequest:
            return SaveForwarderRequest(
                place.topic_id, place.partition, epoch, self._forwarder, self._host.leader_epoch, data
            )

        await self._host.targets.call(place, SAVE_FORWARDER, request, timeout_s=CALL_S)

    async def _find(self) -> Place:
        made = await self._host.ensure_topic(FORWARDING_TOPIC)
        return Place(FORWARDING_TOPIC, made.topic_id, 0)
