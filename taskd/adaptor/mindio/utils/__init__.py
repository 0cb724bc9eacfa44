"""When parameters were last changed, as frameworks note it."""

from taskd.adaptor.mindio.utils.uce_utils import (
    get_l2_hbm_error_time,
    tft_can_do_uce_repair,
    tft_set_update_end_time,
    tft_set_update_start_time,
)

__all__ = [
    "get_l2_hbm_error_time",
    "tft_can_do_uce_repair",
    "tft_set_update_end_time",
    "tft_set_update_start_time",
]
