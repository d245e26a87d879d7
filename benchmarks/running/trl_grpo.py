"""TRL's GRPOTrainer, unmodified, on the flow of flows/running/grpo.yaml. Run by TRL's own python: it imports no flowrl.

    PEERS/trl/bin/python trl_grpo.py MODEL STEPS THREADS ROWS

ROWS: samples of a forward pass; a step of 64 samples accumulates as many as it takes. Prints one JSON object: seconds
and processor seconds of each step, its samples, and the mean length of a response.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")

import torch
from addition import leading_digits
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback, ProgressCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

PROMPTS, SAMPLES, TOKENS = 8, 8, 32


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return leading_digits(completions, answer)


class Clock(TrainerCallback):
    """A step is from the end of the one before to its own: nothing between steps is left out."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._mark()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._mark()

    def _mark(self) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))


def main() -> None:
    model, steps, threads, batch = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(threads)
    rows = [json.loads(line) for line in (Path(model) / "train.jsonl").read_text().splitlines()]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            fp16=False,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=PROMPTS * SAMPLES // batch,
            num_generations=SAMPLES,
            max_completion_length=TOKENS,
            max_steps=steps,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            beta=0.0,
            temperature=1.0,
            loss_type="grpo",
            scale_rewards="group",
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=1,
            dataloader_num_workers=0,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.train()
    lengths = [log["completions/mean_length"] for log in trainer.state.log_history if "completions/mean_length" in log]
    pairs = list(zip(clock.marks, clock.marks[1:], strict=False))
    found = {
        "seconds": [after[0] - before[0] for before, after in pairs],
        "cpu_seconds": [after[1] - before[1] for before, after in pairs],
        "samples": PROMPTS * SAMPLES,
        "response_tokens": sum(lengths) / len(lengths),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
