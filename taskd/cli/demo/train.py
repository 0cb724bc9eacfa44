"""Train a small GPT on the source text of Python's standard library, byte by byte, with three lines
of taskd.

Under plain torchrun it runs the same, unprotected: that curve is the reference.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sysconfig
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import taskd
from taskd.cli.demo import records

# 1.1 M parameters; a step takes ~0.1 s with 4 ranks on 2 cores
WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 128, 4, 5, 64, 4
CORPUS = 4 << 20  # bytes


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            t.view(batch, length, HEADS, -1).transpose(1, 2)
            for t in self.mix(self.norm(x)).split(WIDTH, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        mixed: torch.Tensor = x + self.mlp(self.norm2(x))
        return mixed


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.body = nn.Sequential(
            nn.Dropout(0.1), *(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        )
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(self.letter(text) + self.place.weight))
        return logits


def corpus() -> torch.Tensor:
    """The first few MB of the standard library's source, in the order of file names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= CORPUS:
            break
    return torch.frombuffer(text, dtype=torch.uint8)


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Hash of every byte of the parameters and of the optimizer's moments."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
        state: dict[str, Any] = optimizer.state[parameter]
        for key in sorted(state):
            digest.update(state[key].numpy().tobytes())
    return digest.hexdigest()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="directory of the records")
    parser.add_argument("--steps", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    args = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=args.steps)
    torch.manual_seed(1000 + rank)  # from here on, text and dropout differ by rank
    text = corpus()
    out = records.Writer(Path(args.out), rank)

    job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
    for attempt in job.steps(args.steps):
        with attempt as step:
            at = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1)) + torch.arange(CONTEXT + 1)
            batch = text[at].long()
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            # inside the attempt, so that no kill falls between the step and its record; a repeated
            # attempt writes it again
            out.loss(step, loss.item())
        if attempt.done:
            out.committed(step, os.getpid())
    out.final(fingerprint(model.module, optimizer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
