"""The controller's own functions, at their other place."""

from taskd.adaptor.mindio import callbacks
from taskd.adaptor.mindio.controller_ttp import (
    tft_destroy_controller,
    tft_init_controller,
    tft_query_high_availability_switch,
    tft_start_controller,
)
from taskd.adaptor.mindio.controller_ttp.ttp_utils import input_ip_transform, is_zero_ip


def init_mindx_callback() -> None:
    """Forget the callbacks that were registered."""
    callbacks.registered.clear()


__all__ = [
    "init_mindx_callback",
    "input_ip_transform",
    "is_zero_ip",
    "tft_destroy_controller",
    "tft_init_controller",
    "tft_query_high_availability_switch",
    "tft_start_controller",
]
