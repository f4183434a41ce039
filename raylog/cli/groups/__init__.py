"""`raylog group`: ``command.py`` its commands, ``description.py`` what `describe` shows of a group."""
