"""Tests of transactional producers."""
