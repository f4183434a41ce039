"""`raylog group`: ``command.py`` has its commands, ``description.py`` what `describe` shows of a group."""
