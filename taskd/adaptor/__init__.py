"""Puts taskd into launchers: torch's elastic agent, at one point per launcher.

May import everything below it. `torch_elastic.py`: a subclass of torch's LocalElasticAgent;
`place.py`, `arrival.py`, `stores.py`, `contexts.py` and `failures.py` are its parts. `patching.py`
puts its import into an installed torchrun.
"""
