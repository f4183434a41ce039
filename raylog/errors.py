"""Every error of Raylog, by Kafka's names: `except raylog.errors.RecordTooLarge`. All are `raylog.X` as well.

A module of its own, because its name is public.
"""

from raylog.base.errors.base import *  # noqa: F403
from raylog.base.errors.client import *  # noqa: F403
from raylog.base.errors.cluster import *  # noqa: F403
from raylog.base.errors.forwarding import *  # noqa: F403
from raylog.base.errors.groups import *  # noqa: F403
from raylog.base.errors.outbox import *  # noqa: F403
from raylog.base.errors.partition import *  # noqa: F403
from raylog.base.errors.queues import *  # noqa: F403
from raylog.base.errors.scheduling import *  # noqa: F403
from raylog.base.errors.transactions import *  # noqa: F403
