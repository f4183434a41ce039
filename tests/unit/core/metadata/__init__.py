"""Tests of the metadata image and its records."""
