"""Training loops in parts, of which each does something else between its shares and its update."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from taskd.cython_api.gradients import Ready


class Net(nn.Module):
    """Draws random numbers, and has statistics of its own batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.norm(self.first(x)).tanh()))


def net(**more: Any) -> tuple[DDP, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = DDP(Net(), broadcast_buffers=False, **more)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


class Script:
    """A training loop in three parts: `clear`, `share` and `update` make one step."""

    def __init__(self, **more: Any) -> None:
        self.model, self.optimizer = net(**more)
        self.objects: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()

    def clear(self, step: int) -> None:
        self.optimizer.zero_grad()

    def share(self, step: int, x: torch.Tensor) -> None:
        self.loss(x).backward()

    def update(self, step: int) -> None:
        self.optimizer.step()
        self.draw()

    def draw(self) -> None:
        torch.rand(3)


class ClearsAfterwards(Script):
    def clear(self, step: int) -> None: ...

    def update(self, step: int) -> None:
        super().update(step)
        self.optimizer.zero_grad()


class ClearsInPlace(Script):
    def clear(self, step: int) -> None:
        self.optimizer.zero_grad(set_to_none=False)


class Clips(ClearsAfterwards):
    def update(self, step: int) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        super().update(step)


class Decays(ClearsAfterwards):
    """Changes gradients by hand: as they are, and by what they are."""

    def update(self, step: int) -> None:
        for parameter in self.model.parameters():
            parameter.grad.add_(parameter.detach(), alpha=0.1)
            if step % 2:
                parameter.grad = parameter.grad / parameter.grad.norm()
        super().update(step)


class DecaysByHook(ClearsAfterwards):
    def __init__(self) -> None:
        super().__init__()
        self.optimizer.register_step_pre_hook(self.decay)

    def decay(self, *given: Any) -> None:
        for parameter in self.model.parameters():
            parameter.grad.add_(parameter.detach(), alpha=0.1)
            parameter.grad.div_(parameter.grad.norm())


class Scales(Script):
    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.objects["scaler"] = self.scaler

    def share(self, step: int, x: torch.Tensor) -> None:
        loss = self.loss(x)
        if step == 2 and x.sum() > 0:
            loss = loss * float("inf")
        self.scaler.scale(loss).backward()

    def update(self, step: int) -> None:
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.draw()


class ScalesByItself(Scales):
    """The scaler is not given to protect(), and unscales as it steps."""

    def __init__(self) -> None:
        super().__init__()
        del self.objects["scaler"]

    def update(self, step: int) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.draw()


class TwoOptimizers(Script):
    def __init__(self) -> None:
        super().__init__()
        net = self.model.module
        self.optimizer = torch.optim.SGD([*net.first.parameters(), *net.norm.parameters()], lr=0.1)
        self.second = torch.optim.Adam(net.last.parameters())
        self.objects |= {"optimizer": self.optimizer, "second": self.second}

    def clear(self, step: int) -> None:
        self.model.zero_grad()

    def update(self, step: int) -> None:
        self.optimizer.step()
        self.second.step()
        self.draw()


class Schedules(ClearsAfterwards):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.7)
        self.objects["scheduler"] = self.scheduler

    def update(self, step: int) -> None:
        super().update(step)
        self.scheduler.step()


class AccumulatesWithin(Script):
    def share(self, step: int, x: torch.Tensor) -> None:
        with self.model.no_sync():
            self.loss(x[:3]).backward()
        self.loss(x[3:]).backward()


class AccumulatesOverSteps(Script):
    def clear(self, step: int) -> None:
        if step % 3 == 0:
            self.optimizer.zero_grad()

    def share(self, step: int, x: torch.Tensor) -> None:
        self.model.require_backward_grad_sync = step % 3 == 2
        self.loss(x).backward()

    def update(self, step: int) -> None:
        if step % 3 == 2:
            self.optimizer.step()
        if step % 3 == 2:
            self.draw()


class BucketViews(Script):
    def __init__(self) -> None:
        super().__init__(gradient_as_bucket_view=True)


KINDS = [
    Script,
    ClearsAfterwards,
    ClearsInPlace,
    Clips,
    Decays,
    DecaysByHook,
    Scales,
    ScalesByItself,
    TwoOptimizers,
    Schedules,
    AccumulatesWithin,
    AccumulatesOverSteps,
    BucketViews,
]


def others_hooks(parameter: torch.nn.Parameter) -> list[Any]:
    """The hooks on its gradient, without that which measures how long the rank waits."""
    hooks = (parameter._post_accumulate_grad_hooks or {}).values()
    return [hook for hook in hooks if not isinstance(hook, Ready)]
