"""The scheduler of delayed records: a role of the leader of a partition of ``__scheduled``."""
