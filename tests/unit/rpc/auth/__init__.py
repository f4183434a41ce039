"""Tests of authentication."""
