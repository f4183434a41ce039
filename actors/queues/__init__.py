"""The shells of queue mode: the role of a partition's leader that runs its queues, and the role that stores them."""
