"""One agent per node, inside the launcher: it watches, kills and replaces the node's ranks and
relays for them.

`agent.py` has what its parts share, `loop.py` its thread, `supervisor.py` the launcher's side,
`orders.py` what it does for the manager. `ranks/zygote.py` is a separate process;
`taskd.adaptor.torch_elastic` puts the agent into torchrun.
"""
