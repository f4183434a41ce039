"""Loads and saves forwarders' progress at the leader of ``__forwarding``. May touch: the network, through a host."""

from __future__ import annotations

from typing import Final

import msgspec

from raylog.actors.forwarding.places import Place
from raylog.actors.naming import FORWARDING_TOPIC
from raylog.actors.roles.host import RoleHost
from raylog.base.errors import UnsupportedVersion
from raylog.core.forwarding.progress import Progress
from raylog.protocol.forwarding import LOAD_FORWARDER, SAVE_FORWARDER, LoadForwarderRequest, SaveForwarderRequest

CALL_S: Final = 10.0
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Progress).decode


def encode_progress(progress: Progress) -> bytes:
    """Return progress in its stored form."""
    return _encode(progress)


def decode_progress(data: bytes) -> Progress:
    """Return the progress in this stored form. Raises UnsupportedVersion."""
    try:
        return _decode(data)
    except (ValueError, msgspec.MsgspecError) as error:
        raise UnsupportedVersion(
            f"A forwarder's note in {FORWARDING_TOPIC} cannot be read ({error}); another release of Raylog wrote it: "
            "install that release."
        ) from error


class StoredProgress:
    """The progress of a forwarder whose owner is the leader of its source."""

    def __init__(self, host: RoleHost, forwarder: str) -> None:
        """``forwarder``: the name of the forwarder; ``host``: the host of its role."""
        self._host = host
        self._forwarder = forwarder
        self._place: Place | None = None

    async def load(self) -> Progress | None:
        """Return the stored progress, if any; from now on earlier owners are refused."""
        place = self._place = await self._find()

        def request(epoch: int) -> LoadForwarderRequest:
            return LoadForwarderRequest(
                place.topic_id, place.partition, epoch, self._forwarder, self._host.leader_epoch
            )

        reply = await self._host.targets.call(place, LOAD_FORWARDER, request, timeout_s=CALL_S)
        return decode_progress(reply.progress) if reply.progress else None

    async def save(self, progress: Progress) -> None:
        """Store the progress. Raises ForwarderFenced, RaylogError, OSError."""
        place = self._place or await self._find()
        data = encode_progress(progress)

        def request(epoch: int) -> SaveForwarderRequest:
            return SaveForwarderRequest(
                place.topic_id, place.partition, epoch, self._forwarder, self._host.leader_epoch, data
            )

        await self._host.targets.call(place, SAVE_FORWARDER, request, timeout_s=CALL_S)

    async def _find(self) -> Place:
        made = await self._host.ensure_topic(FORWARDING_TOPIC)
        return Place(FORWARDING_TOPIC, made.topic_id, 0)
