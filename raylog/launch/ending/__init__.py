"""Ending a cluster: its actors in order and paced, and Ray on its other machines."""
