"""Print the exact version of every package installed in this environment, one `name==version` a line.

`make constraints` writes constraints.txt with it, so that every install of a commit gets the versions its tests ran
with. Raylog itself is left out, and so are the installers, which belong to the environment rather than to us.
"""

import re
import sys
from importlib.metadata import distributions

LEFT_OUT = {"pip", "raylog", "setuptools", "wheel"}


def pins() -> list[str]:
    """Every installed distribution as `name==version`, names normalized as in PEP 503, in alphabetical order."""
    found: set[str] = set()
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        if name not in LEFT_OUT:
            found.add(f"{name}=={distribution.version}")
    return sorted(found)


def main() -> None:
    """Print the file."""
    version = ".".join(str(part) for part in sys.version_info[:2])
    sys.stdout.write(f"# Versions that the tests ran with on Python {version}; written by `make constraints`.\n")
    sys.stdout.writelines(f"{pin}\n" for pin in pins())


if __name__ == "__main__":
    main()
