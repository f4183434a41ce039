"""The cluster's metadata as a value: the records, and the image that they add up to."""
