"""A year of history first, then live records, without a gap or a repeat: two ways to hand over.

Either a batch job reads up to offsets that were chosen before, and a stream starts at exactly these offsets; or one
stream reads everything, in pieces of a limited size as long as it is behind, and goes on with what arrives.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from examples.pipelines.place import LOOK_S, Place, end_offsets
from examples.pipelines.values import FLIGHT, parsed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC: Final = "history"
FOLLOWED: Final = "followed"
ROW: Final = (
    "row bigint, source_partition int, source_offset bigint, hour int, carrier string, origin string, dest string, "
    "distance bigint, dep_delay bigint, arr_delay bigint"
)
NAMES: Final = [column.split()[0] for column in ROW.split(", ")]
CATCH_UP_S: Final = 120.0

Offsets = dict[int, int]
"""The next offset to read, by partition."""


def choose_cut(flights: str, share: float = 1.0) -> Offsets:
    """Return where history ends: the end of each partition now, or a share of it."""
    return {partition: int(end * share) for partition, end in end_offsets(flights).items()}


def backfill(place: Place, flights: str, cut: Offsets) -> None:
    """Write the flights before the cut. A job that dies half-way leaves none of them, and can be run again."""
    place.write(_records(place.table(flights, endingOffsets=_spell(flights, cut))), TOPIC)


def start_live(place: Place, flights: str, cut: Offsets) -> StreamingQuery:
    """Write what the topic holds from the cut on; a restart goes on from the checkpoint and ignores the cut."""
    rows = place.stream(flights, startingOffsets=_spell(flights, cut))
    return place.sink(_records(rows), TOPIC).trigger(availableNow=True).start()


def start_all(place: Place, flights: str, most: int) -> StreamingQuery:
    """Write all the topic holds now into another topic, in batches of at most ``most`` records, and end."""
    rows = place.stream(flights, maxOffsetsPerTrigger=most)
    return place.sink(_records(rows), FOLLOWED).trigger(availableNow=True).start()


def follow(place: Place, flights: str, most: int) -> StreamingQuery:
    """Go on from the checkpoint of :func:`start_all`, and follow the topic until the query is stopped."""
    rows = place.stream(flights, maxOffsetsPerTrigger=most)
    return place.sink(_records(rows), FOLLOWED).trigger(processingTime="0 seconds").start()


def wait_until_caught_up(query: StreamingQuery, flights: str) -> None:
    """Wait until a following query has committed everything the topic holds now; raises what made it fail."""
    ends = {str(partition): end for partition, end in end_offsets(flights).items()}
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        error = query.exception()
        if error is not None:
            raise error
        if _read_until(query, flights) == ends:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"query {query.name} is not at {ends} after {CATCH_UP_S:.0f} s: {query.status}")
        time.sleep(LOOK_S)


def _read_until(query: StreamingQuery, topic: str) -> object:
    """Return the offsets at which the last finished batch ended, in Kafka's JSON form; None before the first batch."""
    progress = query.lastProgress
    return None if progress is None else json.loads(progress.sources[0].endOffset).get(topic)


def _records(flights: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    rows = parsed(flights, FLIGHT, "partition", "offset").withColumns(
        {"source_partition": f.col("partition"), "source_offset": f.col("offset"), "hour": f.hour("timestamp")}
    )
    return rows.select(f.col("tailnum").alias("key"), f.to_json(f.struct(*NAMES)).alias("value"), f.col("timestamp"))


def _spell(topic: str, offsets: Offsets) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
