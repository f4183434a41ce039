"""Only for a wheel with compiled modules, `RAYLOG_COMPILE=1 pip install .`; all else is said in pyproject.toml.

Without RAYLOG_COMPILE=1 this does nothing, and neither mypy nor a C compiler is needed.
"""

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py


class CompiledDistribution(Distribution):
    """A wheel that fits one Python on one platform."""

    def has_ext_modules(self) -> bool:
        return True


class BuildCompiled(build_py):
    """Adds the compiled modules to the copied ones, which lie there as they are installed."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            sys.path.insert(0, str(Path(__file__).resolve().parent))
            from tools import native

            if reason := native.missing():
                raise SystemExit(f"RAYLOG_COMPILE=1, but Raylog cannot be compiled here. {reason}")
            native.compile_tree(Path(self.build_lib))


if os.environ.get("RAYLOG_COMPILE") == "1":
    setup(
        distclass=CompiledDistribution,
        cmdclass={"build_py": BuildCompiled},
        setup_requires=["mypy>=2.4,<3", "msgspec>=0.20,<0.23"],
    )
else:
    setup()
