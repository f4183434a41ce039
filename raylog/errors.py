"""Every error of Raylog, by Kafka's names: `except raylog.errors.RecordTooLarge`. All are `raylog.X` as well."""

from raylog.core.errors.base import *  # noqa: F403
from raylog.core.errors.client import *  # noqa: F403
from raylog.core.errors.cluster import *  # noqa: F403
from raylog.core.errors.forwarding import *  # noqa: F403
from raylog.core.errors.groups import *  # noqa: F403
from raylog.core.errors.outbox import *  # noqa: F403
from raylog.core.errors.partition import *  # noqa: F403
from raylog.core.errors.queues import *  # noqa: F403
from raylog.core.errors.scheduling import *  # noqa: F403
from raylog.core.errors.transactions import *  # noqa: F403
