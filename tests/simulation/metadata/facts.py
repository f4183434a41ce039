"""Facts that a controller acknowledged, and the check that they hold in every log adopted or committed afterwards.

A request without an answer may have been carried out or not: its object is not checked until its state is known again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raylog.base.ids import BrokerId
from raylog.core.configuration.altering import NEXT_START
from raylog.core.metadata.image import MetadataImage
from tests.simulation.quorum.disk import Broken


@dataclass
class Topic:
    """Known facts of a topic."""

    topic_id: str
    partitions: int
    config: dict[str, str | None] = field(default_factory=dict)
    """None: unknown."""
    targets: dict[int, tuple[BrokerId, ...] | None] = field(default_factory=dict)
    """Where each partition was moved to; None: unknown."""


class Facts:
    """Every acknowledged fact."""

    def __init__(self, *, heals: bool, given: Mapping[str, str]) -> None:
        """``heals``: replicas move without a request. ``given``: the settings that the cluster was started with."""
        self.given = given
        self.settings: dict[str, str | None] = {}
        """What was altered of the cluster's settings; empty: the alteration has ended. None: unknown."""
        self.topics: dict[str, Topic] = {}
        self.deleted: set[str] = set()
        """Names that were deleted, or whose creation was refused; none is reused."""
        self.next_producer_id = 0
        self.blocks: list[tuple[int, int]] = []
        self.acknowledged = 0
        self.heals = heals
        self._lives: set[tuple[int, int]] = set()

    def block(self, first: int, count: int) -> None:
        """A block of producer ids was issued."""
        for start, size in self.blocks:
            if first < start + size and start < first + count:
                raise Broken(f"producer ids {first} to {first + count} and {start} to {start + size} are handed out")
        self.blocks.append((first, count))
        self.next_producer_id = max(self.next_producer_id, first + count)

    def coordinator(self, producer_id: int, producer_epoch: int) -> None:
        """A coordinator's life writes with this id and epoch."""
        if (producer_id, producer_epoch) in self._lives:
            raise Broken(f"two lives of coordinators write as {producer_id} in epoch {producer_epoch}")
        self._lives.add((producer_id, producer_epoch))
        if not any(producer_id == known for known, epoch in self._lives if epoch != producer_epoch):
            self.block(producer_id, 1)

    def hold_in(self, image: MetadataImage, where: str) -> None:
        """Check every acknowledged fact."""
        present = image.topics
        back = self.deleted & set(present)
        if back:
            raise Broken(f"{where} has {sorted(back)}, which are deleted or were refused")
        if image.next_producer_id < self.next_producer_id:
            raise Broken(f"{where} hands out producer id {image.next_producer_id} again")
        self._settings_hold_in(image, where)
        for name, known in self.topics.items():
            topic = present.get(name)
            if topic is None or topic.topic_id != known.topic_id or len(topic.partitions) < known.partitions:
                raise Broken(f"{where} has {topic}, and acknowledged is {name} as {known}")
            wrong = {key: value for key, value in known.config.items() if value not in (None, topic.config.get(key))}
            if wrong:
                raise Broken(f"{where} has {dict(topic.config)} for {name}, and acknowledged is {wrong}")
            for number, target in known.targets.items():
                if target is not None and not self.heals and topic.partitions[number].target != target:
                    raise Broken(f"{where} has {topic.partitions[number]}, and {target} was requested")

    def _settings_hold_in(self, image: MetadataImage, where: str) -> None:
        """An answered alteration stays, and counts at once but for keys that wait for a start: here there is one."""
        for key, value in self.settings.items():
            if value is None:
                continue
            altered = image.altered_config.get(key, "")
            counts = self.given.get(key) if key in NEXT_START or not value else value
            if altered != value or image.config.get(key) != counts:
                raise Broken(f"{where} has {image.values}, and acknowledged is {key}={value or 'as it was given'}")
