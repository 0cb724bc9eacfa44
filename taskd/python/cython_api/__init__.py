"""The place where the documentation looks for libtaskd.so: libs/libtaskd.so. It is built there from
csrc/.

Imports nothing. The binding to it is in taskd/cython_api.
"""
