"""When the process of a replica at rest may be stopped, and what continues it: pure rules (ADR 0043)."""
