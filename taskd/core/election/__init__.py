"""Which manager is in charge, and who may vote: so that two managers never both act.

Theory of operation. Every manager claims a *term*, a number above all that it has heard of. An
agent acknowledges a term once, to one manager, and from then on obeys that manager only; what
managers of lower terms order is refused and counted. A manager is in charge when a majority of the
agents of the job has acknowledged its term.

Who is an agent of the job stands in the *roster*, which changes when a standby comes and when a
lost node's agent is fenced. A roster is numbered by the term in which it was made and a count. It
changes by one agent at a time, and the next change waits until a majority of the roster has the
present one; an agent votes only for a manager that knows at least as new a roster. So any two
majorities, of the same or of two following rosters, have an agent in common, and two managers
cannot both find one. (The argument is that of Raft's single-server membership change, Ongaro 2014,
4.1; a new manager first has its roster acknowledged unchanged, which is the correction of 2015.)

A job that is just being formed has no roster: its first manager is in charge without a vote,
because nothing is protected yet that two managers could spoil. Exactly half of the agents is no
majority: where the other half is lost, or cut off, nobody takes charge, agents wait as long as they
wait for a manager, and the job ends.
"""
