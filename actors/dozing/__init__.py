"""Dozing: a broker stops the processes of idle replicas with SIGSTOP, and continues them with SIGCONT (ADR 0043)."""
