"""`python -m taskd.cli`: the same as `taskd`."""

from taskd.cli import main

main()
