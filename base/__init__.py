"""The ground floor: errors, ids, epochs and feature levels. Imported by every package, imports none.

Nothing but values and pure functions over the standard library.
"""
