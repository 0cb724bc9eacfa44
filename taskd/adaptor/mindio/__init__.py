"""The fault-tolerance interface that MindSpore's training loop and MindSpeed-LLM call by the name
`mindio_ttp`, with taskd behind it.

A framework that uses it copies its own state: it registers *handlers* that stop its work, clean
its device, rebuild its groups, copy its optimizers from a replica and roll its loop back, and it
reports each update of its parameters. taskd's agent and manager detect faults, replace processes
and decide, as for `taskd.protect`; `orders.py` calls the handlers in the order of the repair.

`framework_ttp`, `controller_ttp` and `utils` are the interface; `alias.py` makes this package
importable as `mindio_ttp`. Imports neither torch nor mindspore before the framework does.
"""
