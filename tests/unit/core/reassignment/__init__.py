"""Tests of moving partitions."""
