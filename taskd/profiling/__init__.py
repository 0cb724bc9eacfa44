"""Light profiling: the durations of ranges of a rank's steps, one line each, in files.

`switches.py` reads the documented file profilingSwitch; `recording.py` collects ranges and
`files.py` writes them within a limit; `torch_ranges.py` finds them in torch; `rank.py` switches all
that on and off in a rank; `merging.py` makes one trace of many ranks' files. What ranks profile is
decided by core/requests/profiling.py. `group_info.py` writes down a rank's process groups.
"""
