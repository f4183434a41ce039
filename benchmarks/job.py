"""One measurement by one client: the harness's request to a client process, as a line of JSON on its standard input.

The process answers with lines of JSON: `{"ready": true}` once it is connected and warm, at the end `{"outcome": ...}`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

Outcome = dict[str, Any]
"""Numbers by name: `records`, `seconds`, `client_cpu_s`, `server_cpu_s`, `stored`, percentiles in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job. Times are in seconds unless the name states otherwise."""

    load: str
    """A function of `loads`, `queues.loads` or `delays.loads`."""
    client: str
    """A module of `clients`."""
    topic: str
    address: dict[str, str] = field(default_factory=dict)
    form: str = "records"
    """`records`: one call and one object a record. `columns`: a call or an object for many."""
    partitions: int = 1
    replication: int = 1
    size: int = 100
    acks: str = "all"
    compression: str = "none"
    linger_ms: int = 5
    batch_bytes: int = 128 << 10
    """Kafka's clients need it for their best rate."""
    warmup_s: float = 1.0
    seconds: float = 2.0
    rate: float = 0.0
    """Records per second; 0: no limit."""
    count: int = 0
    """Records to expect, to read or to send; 0: by time."""
    newest: int = 0
    """Read so many of the last records of each partition; 0: all."""
    transaction_ms: int = 0
    """How long each transaction is open; 0: records are sent outside of transactions."""
    isolation: Any = "read_uncommitted"
    """What consumers see of transactions."""
    connections: int = 1
    group: str = ""
    """The group of a queue's consumers."""
    keys: int = 0
    """Of records that begin with a number: the key is the number modulo this; 0: none."""
    even: bool = False
    """Records go to the partitions in turn, so that all hold as many; else the client's partitioner decides."""
    delay_ms: int = 0
    """Records are sent so long before the time in their stamp, when they are due; 0: they are not delayed."""
    assignor: str = ""
    """By which a group shares its partitions; none: the client's default."""
    group_protocol: Any = "classic"
    """`classic`, or `consumer`: the coordinator assigns."""
    fresh: bool = False
    """Whether a server that keeps everything in memory drops it first."""
    once: bool = False
    """Whether a topic is read at most once, because a second read would differ."""
    waits: bool = False
    """Whether to wait for a line on standard input after reporting ready."""
    server_pids: list[int] = field(default_factory=list)

    def line(self) -> str:
        """Encode as a line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def of_line(line: str) -> Job:
        """Decode a line of JSON."""
        return Job(**json.loads(line))
