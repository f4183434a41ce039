"""What a queue does with records that leave their partition: dead letters, and copies for late retries."""
