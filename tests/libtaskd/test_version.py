"""The library, the binding, the package and its metadata have one version: `taskd doctor` compares
them."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import taskd
from taskd.cython_api import core, library_path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_one_version():
    library = ctypes.CDLL(library_path())
    library.taskd_version.restype = ctypes.c_char_p
    found = re.search(r'^version = "(.+)"$', PYPROJECT.read_text(), re.MULTILINE)
    assert found is not None
    assert library.taskd_version().decode() == core.VERSION == taskd.__version__ == found[1]
