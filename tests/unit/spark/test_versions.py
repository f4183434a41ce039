"""Packages that do not work together are named before a JVM starts."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from raylog.base.errors import WrongVersions
from raylog.spark import register, versions
from raylog.spark.versions import NEEDED, check, installed, require, wanted

RANGES = wanted(['ray<3,>=2.60; extra == "other"', "ray<3,>=2.60", 'pyspark<4.3,>=4.2; extra == "spark"'])


def test_this_environment_is_right() -> None:
    require()


def test_the_ranges_are_those_of_the_package() -> None:
    assert set(NEEDED) <= set(wanted(metadata.requires("raylog") or ()))


def test_a_wrong_version_is_named_with_the_one_wanted_and_the_command() -> None:
    with pytest.raises(WrongVersions) as caught:
        check({"ray": "2.61.0", "pyspark": "3.5.8", "raydp": "1.6.0"}, RANGES)
    assert str(caught.value) == (
        "Spark on Ray needs pyspark <4.3,>=4.2 (found 3.5.8): run `pip install --upgrade 'raylog[spark]'`."
    )


def test_pre_releases_and_local_builds_count_as_their_release() -> None:
    check({"ray": "2.61.0.dev0", "pyspark": "4.2.1+vendor"}, RANGES)
    with pytest.raises(WrongVersions, match="found unreadable"):
        check({"ray": "unreadable"}, RANGES)


def test_a_missing_package_is_an_import_error() -> None:
    with pytest.raises(ImportError, match=r"needs pyspark, raydp: run `pip install 'raylog\[spark\]'`"):
        check({"ray": "2.60.0", "pyspark": None, "raydp": None}, RANGES)
    assert installed("a-package-that-does-not-exist") is None


def test_register_checks_what_the_source_needs_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"pyspark": "4.0.1", "pyarrow": "20.0", "pandas": "2.3", "numpy": "2.1"}
    monkeypatch.setattr(versions, "installed", found.__getitem__)  # no Ray and no RayDP
    session: Any = None  # not looked at
    with pytest.raises(WrongVersions, match=r"^The data source raylog needs pyspark <4\.3,>=4\.2 \(found 4\.0\.1\)"):
        register(session)


def test_the_source_names_a_package_that_is_too_old_for_it() -> None:
    with pytest.raises(WrongVersions, match=r"^The data source raylog needs pyspark <4\.3,>=4\.2 \(found 4\.0\.1\)"):
        check({"pyspark": "4.0.1"}, RANGES, "The data source raylog")
