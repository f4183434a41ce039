"""What a replica reports: its beats, its metrics, and its status for operators."""
