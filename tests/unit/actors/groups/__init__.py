"""Tests of the group coordinator's shell."""
