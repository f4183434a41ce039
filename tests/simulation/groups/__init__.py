"""The simulator's world of consumer groups: real coordinators and members on a virtual offsets topic."""
