"""Consume-transform-produce under faults: every committed record of one topic has one copy in another."""
