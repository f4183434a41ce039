"""The producer: accumulator, queues, sender, delivery."""
