"""Tests of the partition log."""
