"""Tests of how actors' processes are made and restarted."""
