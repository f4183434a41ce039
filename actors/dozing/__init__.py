"""Processes of replicas at rest are stopped and continued by their broker (ADR 0043)."""
