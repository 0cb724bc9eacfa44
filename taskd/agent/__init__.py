"""One agent per node, inside the launcher: it watches, kills and replaces the node's ranks and
relays for them.

`ranks/model.py` and `member.py` have what its parts share, `agent.py` puts them together, `loop.py`
is its thread, `supervisor.py` the launcher's side, `orders.py` what it does for the manager.
`ranks/zygote.py` is a separate process; `taskd.adaptor.torch_elastic` puts the agent into torchrun.
"""
