"""Tests of what all coordinators have in common."""
