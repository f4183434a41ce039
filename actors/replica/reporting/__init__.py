"""What a replica shows of itself: that it runs, metrics, and its status for operators."""
