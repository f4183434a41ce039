"""Tests of the replica's shell."""
