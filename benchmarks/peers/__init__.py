"""The servers that are measured: each can be started, asked for topics, robbed of a process, and stopped."""
