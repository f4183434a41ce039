"""Run mypyc and the C compiler over files of the current folder; `tools/native.py` starts this as a process of its own.

python native_compile.py GROUP OPTIMIZE FILE...
"""

import os
import sys

from mypyc.build import mypycify
from setuptools import setup


def main(group: str, optimize: str, *files: str) -> None:
    """Leave an extension module beside each file, and the library of the group, which they share."""
    extensions = mypycify(
        ["--config-file=mypy.ini", *files], opt_level=optimize, debug_level="0", group_name=group, multi_file=True
    )
    jobs = str(os.cpu_count() or 1)
    setup(name="raylog", packages=[], ext_modules=extensions, script_args=["build_ext", "--inplace", f"-j{jobs}"])


if __name__ == "__main__":
    main(*sys.argv[1:])
