"""The cluster's metadata as a value: records, the image that they make, and what is published of it."""
