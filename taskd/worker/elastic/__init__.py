"""Elastic training in the rank: this process also computes the shares of ranks that are away.

Start with `standing.py`, what a stand-in carries and does; `away.py` is one rank that is away,
`private.py` what of its state is its own. `sums.py` adds the gradients of all shares,
`synchronization.py` has torch's wrappers average them once, and `inelastic.py` says what cannot be
done.
"""
