"""The controller's pure core: the machine that decides on the cluster's metadata (``controller.py``)."""
