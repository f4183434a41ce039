"""When the process of a replica at rest may be stopped (SIGSTOP), and what continues it: pure rules (ADR 0043)."""
