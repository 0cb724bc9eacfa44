"""Puts taskd into launchers, at one point per launcher, and answers to `mindio_ttp`.

`torch_elastic.py`: a subclass of torch's LocalElasticAgent; `place.py`, `arrival.py`, `stores.py`,
`contexts.py`, `stopping.py`, `restarts.py` and `failures.py` are its parts. `torch_versions.py`
says with which torch a job can be protected; `patching.py` puts taskd's import into an installed
torchrun. `msrun/` is the same for msrun, `mindio/` for frameworks that repair themselves.
"""
