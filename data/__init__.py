"""Ray Data: topics as datasets, and datasets into topics; see raylog.data.read and raylog.data.write."""

from raylog.data.read import read
from raylog.data.write import write

__all__ = ["read", "write"]
