"""Tests of the controller's shell."""
