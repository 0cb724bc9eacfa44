"""`from taskd.python.adaptor.pytorch.group_info import dump_group_info`, as the guide to the
diagnosis of slow nodes has it in a training loop."""

from taskd.profiling.group_info import dump_group_info

__all__ = ["dump_group_info"]
