"""Queue mode in the world: workers of two groups on one topic, and what is known of each record there."""
