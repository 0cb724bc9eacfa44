"""Python runs this first in each worker under taskd's msrun agent, which puts this folder before
the worker's PYTHONPATH. The site's own sitecustomize, if there is one, runs next."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
_rest = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != _here]
# what the worker starts is no worker
os.environ.pop("PYTHONPATH", None)
if _rest:
    os.environ["PYTHONPATH"] = os.pathsep.join(_rest)

_ours = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ModuleNotFoundError:
    if _ours is not None:
        sys.modules["sitecustomize"] = _ours

try:
    from taskd.adaptor.msrun.joining import install
except ImportError as error:
    print(
        f"taskd: this worker's Python ({sys.executable}) cannot import taskd ({error}); after a"
        " restart its first collective may fail: install taskd there",
        file=sys.stderr,
    )
else:
    install()
