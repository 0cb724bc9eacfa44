"""Fault codes of devices: reads `faultCode.json` and `faultCustomization.json` in the vendor's
format and derives each device's level from them; and the codes themselves, from a node's
device-info (`device_info.py`).

Pure except for `configuration.py` (reads a directory), `watch.py` (detects changes to it) and
`separated.py` (the journal of devices that only operators release). `taskd.mindcluster.levels` has
what a level asks of the job; the manager's side is `manager/devices/codes.py`.
"""

from taskd.mindcluster.faults.configuration import Configuration, Refused, load
from taskd.mindcluster.faults.evaluation import Devices
from taskd.mindcluster.faults.findings import Finding
from taskd.mindcluster.faults.judgement import Judgement

__all__ = ["Configuration", "Devices", "Finding", "Judgement", "Refused", "load"]
