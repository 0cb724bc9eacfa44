# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""libtaskd's version, and whether it was preloaded."""

from taskd.cython_api.libtaskd cimport taskd_abi, taskd_preloaded, taskd_version

ABI = taskd_abi()
VERSION = taskd_version().decode()


def preloaded():
    """Whether libtaskd interposes libc's sigaction, _exit and abort in this process."""
    return taskd_preloaded() == 1
