"""The same work on two checkouts of Raylog, in turn: whether one is slower by a few percent on a noisy machine."""
