"""Builds weave_rt._core from csrc/. Needs a C++20 compiler and pybind11; no CUDA header, no nvcc.

Everything else about the package is in pyproject.toml.
"""

from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

SOURCES = Path("csrc")

ParallelCompile("WEAVE_BUILD_JOBS", default=2).install()

setup(
    cmdclass={"build_ext": build_ext},
    ext_modules=[
        Pybind11Extension(
            "weave_rt._core",
            sorted(str(path) for path in SOURCES.glob("*/*.cpp")),
            include_dirs=[str(SOURCES)],
            depends=sorted(
                str(path) for suffix in ("hpp", "def") for path in SOURCES.glob(f"*/*.{suffix}")
            ),
            cxx_std=20,
            extra_compile_args=["-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
            libraries=["dl", "pthread"],
        )
    ],
)
