"""The cluster's metadata as a value: records, and the image that they add up to."""
