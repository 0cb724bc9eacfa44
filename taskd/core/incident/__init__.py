"""One incident: a fault and everything that is done about it.

Read in this order: `phases.py` (the table of phases and moves, with the theory of operation),
`state.py` (what is known), `driver.py` (the only loop: events in, moves out), `actions.py` (what is
done on entering a phase, and what each phase waits for), `rounds.py` (whom a round interrupts,
evicts and replaces), `ladder.py` (which strategy, and why not the others), `takeover.py` (nodes
that other agents take over), `dump.py` (the state is saved before the job ends), `outcome.py` (how
it ends).
"""
