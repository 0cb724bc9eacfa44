"""A small model of transformers, and a death in its trainers' steps."""

from __future__ import annotations

from typing import Any

from training import Training
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback


def small() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )


class At(TrainerCallback):
    """`Training.at`, before each update."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._training.at(state.global_step)
