"""What the trainer keeps beside model and optimizers: progress, metrics, callbacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BaseProgress
from lightning.pytorch.trainer.connectors.logger_connector import result as results

from taskd.integrations.attributes import Attributes
from taskd.integrations.lightning.files import Checkpoints, Logs

# attributes of a Metric that change with its values
COUNTERS = ("_computed", "_forward_cache", "_update_count", "has_reset")
FLAGS = (
    *("_restarting", "_loaded_from_state_dict", "_resuming_from_checkpoint", "_restart_stage"),
    *("_skip_next_val", "_has_run"),
)
CONNECTOR = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics")


class TrainerState:
    """An object with a state_dict(), for taskd.protect. `inside`: an epoch has begun, and not
    ended. It changes in calls alone, but for the flags, which the loops take down between two."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._fit, self._calls = trainer, trainer.fit_loop, 0
        self._epoch, self._connector = trainer.fit_loop.epoch_loop, trainer._logger_connector
        # what a process shows on its screen is its own
        shown = (c for c in trainer.callbacks if not isinstance(c, ProgressBar))
        self._callbacks = [Attributes(callback) for callback in shown]
        self.inside = False
        self.first = 0  # the epoch of the first pass over the data
        self.files = Checkpoints(trainer)
        self.logs = Logs(trainer)

    @property
    def state_version(self) -> Any:
        return self._calls, flags(self._fit)

    def changes(self) -> None:
        self._calls += 1

    def state_dict(self) -> dict[str, Any]:
        connector, fetcher = self._connector, self._fit._data_fetcher
        return {
            "progress": {name: p.state_dict() for name, p in _progress(self._fit)},
            "flags": flags(self._fit),
            "steps": self._epoch._batches_that_stepped,
            "validated": dict(self._epoch.val_loop._seen_batches_per_dataloader),
            "fetched": (fetcher.fetched, fetcher.done) if fetcher is not None else (0, False),
            "stop": self._trainer.should_stop,
            "inside": self.inside,
            "first": self.first,
            "metrics": {name: dict(getattr(connector, name)) for name in CONNECTOR},
            "logging": (connector._first_loop_iter, connector._current_fx),
            "results": {key: self._of_result(m) for key, m in self._epoch._results.items()},
            "callbacks": [attributes.state_dict() for attributes in self._callbacks],
            "checkpoints": sorted(self.files.existing),
            "logs": self.logs.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        connector, fetcher = self._connector, self._fit._data_fetcher
        for name, progress in _progress(self._fit):
            progress.load_state_dict(state["progress"][name])
        put_flags(self._fit, state["flags"])
        self._epoch._batches_that_stepped = state["steps"]
        seen = self._epoch.val_loop._seen_batches_per_dataloader
        seen.clear()
        seen.update(state["validated"])
        if fetcher is not None:
            fetcher.fetched, fetcher.done = state["fetched"]
        self._trainer.should_stop, self.inside = state["stop"], state["inside"]
        self.first = state["first"]
        for name, values in state["metrics"].items():
            setattr(connector, name, values)
        connector._first_loop_iter, connector._current_fx = state["logging"]
        kept = self._epoch._results
        for key in kept.keys() - state["results"].keys():
            del kept[key]
        for key, described in state["results"].items():
            self._put_result(key, described)
        for attributes, values in zip(self._callbacks, state["callbacks"], strict=True):
            attributes.load_state_dict(values)
        self.files.existing = set(state["checkpoints"])
        self.logs.load_state_dict(state["logs"])
        # by identities in the process that had it; the next self.log makes it again
        self._trainer.lightning_module._metric_attributes = None

    # -- what the module has logged in this epoch --------------------------------------------------

    def _of_result(self, metric: Any) -> dict[str, Any]:
        meta = metric.meta
        described = {n: v for n, v in vars(meta).items() if n not in ("reduce_fx", "_sync")}
        sync = meta.sync
        return {
            "meta": described,
            "reduce": meta.reduce_fx.__name__,
            "sync": (sync.should, sync.rank_zero_only, sync.op, sync.fn is not sync.no_op),
            "tensor": metric.is_tensor,
            "values": {n: getattr(metric, n) for n in (*COUNTERS, *self._states(metric))},
        }

    def _states(self, metric: Any) -> list[str]:
        return list(metric._defaults) if metric.is_tensor else []

    def _put_result(self, key: str, described: dict[str, Any]) -> None:
        kept = self._epoch._results
        if key not in kept:
            should, rank_zero_only, op, reduces = described["sync"]
            meta = results._Metadata(
                **described["meta"], reduce_fx=getattr(torch, described["reduce"])
            )
            meta.sync = results._Sync(
                _should=should,
                rank_zero_only=rank_zero_only,
                _op=op,
                fn=self._trainer.strategy.reduce if reduces else results._Sync.no_op,
            )
            kept[key] = results._ResultMetric(meta, described["tensor"])
            if not described["tensor"]:
                modules = dict(self._trainer.lightning_module.named_modules())
                kept[key].value = modules[meta.metric_attribute]
        for name, value in described["values"].items():
            setattr(kept[key], name, value)


def _loops(loop: Any, name: str = "fit") -> Iterator[tuple[str, Any]]:
    """The loop and those inside it, by name."""
    yield name, loop
    for inner, value in vars(loop).items():
        if isinstance(value, _Loop):
            yield from _loops(value, f"{name}.{inner}")


def _progress(loop: Any) -> Iterator[tuple[str, Any]]:
    """The counters of the loop and of those inside it, by name."""
    for name, owner in _loops(loop):
        for inner, value in vars(owner).items():
            if isinstance(value, _BaseProgress):
                yield f"{name}.{inner}", value


def flags(fit: Any) -> dict[str, Any]:
    """How the loops go on from a checkpoint of Lightning's, by loop."""
    return {
        name: {f: vars(loop)[f] for f in FLAGS if f in vars(loop)} for name, loop in _loops(fit)
    }


def put_flags(fit: Any, values: dict[str, Any]) -> None:
    for name, loop in _loops(fit):
        vars(loop).update(values[name])
