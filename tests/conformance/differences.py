"""Programs that see something else on Raylog than on Kafka, and why it is meant so. docs/kafka.md has the same rows."""

from __future__ import annotations

from typing import Final

DIFFERENCES: Final[dict[str, str]] = {
    "an_acknowledgement_means_that_the_record_is_on_disk": (
        "`flush.messages` is 1: an acknowledged record survives the loss of power of all hosts at once. "
        "Kafka's default leaves it in the page cache."
    ),
}
"""By the name of the program."""
