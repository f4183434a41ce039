"""Ray actors as processes: how they are made, forked, named, kept spare and restarted."""
