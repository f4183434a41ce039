"""What a group does in time: rounds, sessions and member ids."""
