"""Ends a cluster: its actors in order, a bounded number at a time, and Ray on its other machines."""
