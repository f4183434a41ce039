"""Tests of how a client finds and reaches a cluster."""
