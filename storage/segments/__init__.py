"""The files of one segment: its batches, indexes and aborted transactions, and how files are replaced and removed."""
