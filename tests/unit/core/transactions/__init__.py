"""Tests of the rules of transactions."""
