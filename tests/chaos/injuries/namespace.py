"""A network namespace for the calling process, with one TUN device in it. Needs root on Linux.

The namespace belongs to the process: it ends with it, and with it the device, so that nothing can stay behind.
"""

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from typing import Final

from tests.chaos.arena import LeftOut

DEVICE: Final = "tun0"
MTU: Final = 9000
_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_PR_SET_PDEATHSIG: Final = 1
_SIGKILL: Final = 9


def require_root() -> None:
    """Raise :class:`LeftOut` where namespaces cannot be made."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise LeftOut("the network part was left out: network namespaces take root on Linux.")
    if shutil.which("ip") is None:
        raise LeftOut("the network part was left out: there is no command `ip` (package iproute2).")
    if not os.path.exists("/dev/net/tun"):
        raise LeftOut("the network part was left out: there is no /dev/net/tun.")


def enter(address: str) -> int:
    """Move this process into a namespace of its own; returns the device, whose packets the caller must carry.

    Raises :class:`LeftOut` when the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise LeftOut(f"the network part was left out: no network namespace ({os.strerror(ctypes.get_errno())}).")
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN_NO_PI))
    except OSError as error:
        raise LeftOut(f"the network part was left out: no TUN device ({error}).") from None
    for command in (
        "ip link set lo up",
        f"ip addr add {address}/24 dev {DEVICE}",
        f"ip link set {DEVICE} mtu {MTU} up",
    ):
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False, timeout=20)
        if done.returncode != 0:
            raise LeftOut(f"the network part was left out: `{command}`: {done.stderr.strip()}")
    return device


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, even while it is stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
