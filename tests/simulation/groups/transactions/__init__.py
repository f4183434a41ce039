"""Offsets of transactions in the group world: their producers, and the books that check them."""
