"""Tests of the administrator's client."""
