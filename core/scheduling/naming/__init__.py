"""Schedule ids: which record waits under one, whether its key is in memory or in a run."""
