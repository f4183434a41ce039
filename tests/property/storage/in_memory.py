"""A folder in memory for logs that examples write: on a disk their syncs took longer than everything else."""

from pathlib import Path
from typing import Final

FOLDER: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""For `tempfile`; None is its own choice."""
