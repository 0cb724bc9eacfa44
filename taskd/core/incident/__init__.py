"""One incident: a fault and everything done about it.

Read in this order: `phases.py` (the table of phases and moves, with the theory of operation),
`state.py` (the incident's data), `driver.py` (the only loop: events in, moves out), `actions.py`
(the actions on entering a phase, and what each phase waits for), `rounds.py` (which ranks a round
interrupts, evicts and replaces), `ladder.py` (which strategy, and why not the others),
`takeover.py` (nodes that other agents take over), `dump.py` and `checkpoint.py` (saving the state
before the job ends), `outcome.py` (how the incident ends), `times.py` (when each rank did what).
"""
