"""Schedule ids: which record waits under an id, be its key in memory or in a run."""
