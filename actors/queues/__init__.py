"""The shells of queue mode: the queues of a partition at its leader, and the keeper of their state."""
