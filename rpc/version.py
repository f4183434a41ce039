"""Version and feature level of this software, as the handshake sends them."""

from __future__ import annotations

FEATURE_LEVEL = 1
"""Raised by one when this software gains an ability that peers have to know of before it is used."""
SOFTWARE = "raylog 0.2.0"
"""Name and version of this software; a test compares it with the package's."""
