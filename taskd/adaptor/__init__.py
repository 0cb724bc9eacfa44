"""Puts taskd into launchers, at one point per launcher, and answers to `mindio_ttp`.

`torch_elastic.py`: a subclass of torch's LocalElasticAgent; `place.py`, `rendezvous.py`,
`arrival.py`, `stores.py`, `contexts.py`, `stopping.py`, `restarts.py` and `failures.py` are its
parts; `script.py` looks whether there is what they are to start, and `starter.py` at what started
them. `msrun/` is the same for msrun; `launcher.py` and `set_up.py` are what both do.
`torch_versions.py` says with which torch a job can be protected; `patching.py` puts taskd's import
into an installed torchrun. `mindio/` is for frameworks that repair themselves.
"""
