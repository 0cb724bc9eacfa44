"""How taskd gets into launchers: torch's elastic agent here, in one place per launcher.

May import everything below it. `torch_elastic.py`: a subclass of torch's LocalElasticAgent;
`place.py`, `arrival.py`, `stores.py`, `contexts.py` and `failures.py` are its parts.
`run_py.py` and `patching.py`: the import of it in an installed torchrun, as text and as a file.
"""
