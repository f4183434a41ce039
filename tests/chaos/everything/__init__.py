"""Every feature at once on real Ray, under faults for an hour, or at rest for two; judged from the outside."""
