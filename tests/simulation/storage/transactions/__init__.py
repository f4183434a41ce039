"""Transactions in the log on a virtual disk: the profile `storage-transactions`."""
