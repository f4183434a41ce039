"""Tests of consumer groups on the client's side."""
