"""Every error of Raylog, by Kafka's names: `except raylog.errors.RecordTooLarge`. All are `raylog.X` as well."""

from raylog.core.errors import *  # noqa: F403
from raylog.core.errors import __all__ as __all__
