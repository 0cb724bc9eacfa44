"""Elects one manager by majority, so that two managers never both act.

Theory of operation. Every manager claims a *term*, a number above all those it knows of. An agent
acknowledges a term once, to one manager, and from then on obeys only that manager; orders of
managers of lower terms are refused and counted. A manager is in charge when a majority of the job's
agents has acknowledged its term.

The *roster* lists the agents of the job. It changes when a standby joins and when a lost node's
agent is fenced. Its stamp is the term in which it was made and a count. It changes by one agent at
a time, and the next change waits until a majority of the roster has the current one; an agent votes
only for a manager whose roster is at least as new as its own. So any two majorities, of the same or
of two consecutive rosters, have an agent in common, and two managers cannot both have one. (The
argument is that of Raft's single-server membership change, Ongaro 2014, 4.1; a new manager first
has its roster acknowledged unchanged, which is the correction of 2015.)

A job that is still forming has no roster: its first manager is in charge without a vote, because
nothing is protected yet that two managers could damage. Exactly half of the agents is no majority:
if the other half is lost or cut off, no manager takes charge, agents wait until their limit for a
missing manager, and the job ends.
"""
