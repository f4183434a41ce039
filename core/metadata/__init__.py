"""The cluster's metadata as a value: records, the image that they add up to, and what is published of it."""
