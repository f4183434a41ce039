"""The consumer of queue mode: records handed out one by one, acknowledged one by one."""
