"""The library, the binding, the package and its metadata have one version: `taskd doctor` compares
them."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import taskd
from taskd.cython_api import library, library_path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_one_version():
    loaded = ctypes.CDLL(library_path())
    loaded.taskd_version.restype = ctypes.c_char_p
    found = re.search(r'^version = "(.+)"$', PYPROJECT.read_text(), re.MULTILINE)
    assert found is not None
    assert loaded.taskd_version().decode() == library.VERSION == taskd.__version__ == found[1]
