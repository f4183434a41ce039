"""Groups hash to their coordinators as in Kafka."""

import pytest

from raylog.core.coordinators.hashing import coordinator_partition, java_hash


@pytest.mark.parametrize(
    ("text", "code"),
    # `String.hashCode()` of a JVM; the third is the only negative number without a positive one.
    [
        ("", 0),
        ("hello", 99_162_322),
        ("polygenelubricants", -(2**31)),
        ("readers", 1_080_410_128),
        ("\U0001f600", 1_772_899),
    ],
)
def test_the_hash_is_that_of_a_jvm(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_a_group_belongs_to_kafkas_partition() -> None:
    assert coordinator_partition("hello", 50) == 99_162_322 % 50
    assert coordinator_partition("polygenelubricants", 50) == 0
