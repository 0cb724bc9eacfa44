"""The interface for a training framework: functions.py, and the decorator of ttp_decorator.py."""

from taskd.adaptor.mindio.framework_ttp import functions
from taskd.adaptor.mindio.framework_ttp.functions import *
from taskd.adaptor.mindio.framework_ttp.ttp_decorator import tft_exception_handler

__all__ = [*functions.__all__, "tft_exception_handler"]
