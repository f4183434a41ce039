"""Tests of the broker's shell."""
