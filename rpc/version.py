"""What this software is, as the handshake tells it to the other end."""

from __future__ import annotations

FEATURE_LEVEL = 1
"""Raised by one when this software can do something that peers have to know of before it is used."""
SOFTWARE = "raylog 0.2.0"
"""Name and version of this software; a test compares it with the package's."""
