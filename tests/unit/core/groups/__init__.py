"""Unit tests of the group coordinator machine."""
