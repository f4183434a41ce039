"""Tests of the metadata log's shells."""
