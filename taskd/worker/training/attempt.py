"""The attempt that `for attempt in job.steps(n): with attempt as step:` hands out."""

from __future__ import annotations

import enum

from taskd.cython_api import attempt


class Interrupted(BaseException):
    """Raised when an interruption is pending as this rank is about to change its parameters. Not an
    Exception, so that user code does not catch it."""


class Ending(enum.IntEnum):
    COMMITTED = attempt.COMMITTED
    AGAIN = attempt.AGAIN  # committed, as it had been before a repair went back to it
    REPEATED = attempt.REPEATED  # after a fault: the loop enters the repair
    RAISED = attempt.RAISED  # the script's own exception


class Attempt(attempt.Handed):
    """One try at one step; a context manager. An exception that a fault causes is swallowed, and
    the loop hands the step out again. Any other exception leaves the loop.

    Attributes:

    - `committed` (bool): whether this was the first commit of the step in this rank, known when the
      `with` statement is left. Log and save where it is true. It is true at most once per step and
      rank, over all processes of the rank: a step that is repeated after its commit is not
      committed again. docs/concepts.md says what that leaves out.
    - `done` (bool): whether this was a commit of the step, the first or a later one. Update
      variables that the loop carries on, such as a count or the best loss, where it is true: a
      repair restores them with their step, and the repeated step updates them again. A variable
      that is updated where `committed` is true would miss that update; it is named in the log
      before the first step.
    - `step` (int): the number of the step.
    """

    __slots__ = ()
