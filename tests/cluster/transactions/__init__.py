"""Transactions in a real Ray."""
