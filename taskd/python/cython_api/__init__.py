"""The directory in which MindCluster's guides expect libtaskd.so: libs/libtaskd.so, built from
csrc/.

Imports nothing. The binding to the library is in taskd/cython_api.
"""
