"""Tests of decoding and of local reads."""
