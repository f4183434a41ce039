"""The shipped storage on a virtual disk: `disk` and `filesystem` are the disk, `run` is the world of the profile."""
