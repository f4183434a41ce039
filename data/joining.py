"""The Ray session in which a dataset is read or written. Used by reads.py and writes.py. May touch: Ray."""

from __future__ import annotations

import os

import ray

from raylog.base.errors import NoClusterFound
from raylog.client.cluster.discovery import ENV_BOOTSTRAP
from raylog.client.cluster.lasting_thread import in_lasting_thread
from raylog.client.cluster.ray_session import own_ray_options, running_ray_address


def join_ray(bootstrap: str | None) -> None:
    """Join the Ray cluster that runs here; without one, start a private Ray, if a Raylog cluster is named.

    Raises NoClusterFound where neither `bootstrap` nor the environment names a Raylog cluster.
    """
    if ray.is_initialized():
        return
    address = running_ray_address()
    if address is not None:
        ray.init(address=address, log_to_driver=False)
    elif bootstrap is not None or os.environ.get(ENV_BOOTSTRAP):
        in_lasting_thread(lambda: ray.init(**own_ray_options()))
    else:
        raise NoClusterFound()
