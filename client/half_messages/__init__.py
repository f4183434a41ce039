"""Half messages: records that are stored before a local transaction, and visible when it has committed."""
