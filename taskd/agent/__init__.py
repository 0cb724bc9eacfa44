"""One agent per node, inside the launcher: it watches, kills and replaces the node's ranks and
relays for them.

May import `taskd.core`, `taskd.protocol`, `taskd.records.store`, `taskd.cython_api`. `agent.py` has
what its parts share, `loop.py` its thread, `supervisor.py` the launcher's side; `zygote.py` is a
separate process; `taskd.adaptor.torch_elastic` puts the agent into torchrun.
"""
