"""The measured servers: each can be started, given topics, lose a process, and be stopped."""
