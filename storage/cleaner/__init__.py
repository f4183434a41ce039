"""The log cleaner: keeps the last record of each key in the sealed segments of a log (`cleanup.policy=compact`)."""
