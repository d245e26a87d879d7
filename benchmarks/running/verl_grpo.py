"""The command that runs verl's GRPO on the flow of flows/running/grpo.yaml, and what its log says of a step.

verl 0.9.1 has no CPU platform; verl_cpu_plugin.py adds one from outside, by verl's own registry of platforms, and works
round three faults there. No file of verl is changed. FSDP2 over gloo trains, vLLM (CPU build) generates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
_STEP = re.compile(r"timing_s/step:(?:np\.float64\()?([\d.]+)")

ENVIRONMENT: Mapping[str, str] = {
    "PYTHONPATH": str(HERE),
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu_plugin",
    "VERL_ENGINE_DEVICE": "cuda",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TOKENIZERS_PARALLELISM": "false",
    "HYDRA_FULL_ERROR": "1",
}

_OPTIONS = """
algorithm.adv_estimator=grpo
data.train_batch_size=8 data.max_prompt_length=16 data.max_response_length=32 data.dataloader_num_workers=0
data.val_max_samples=8
actor_rollout_ref.model.use_remove_padding=False actor_rollout_ref.model.enable_gradient_checkpointing=False
+actor_rollout_ref.model.override_config.attn_implementation=sdpa
actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.optim.lr=1e-3
actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64
actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.fsdp_config.model_dtype=fp32
actor_rollout_ref.actor.fsdp_config.use_torch_compile=False actor_rollout_ref.actor.use_torch_compile=False
actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.dtype=float32
actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.enforce_eager=True
actor_rollout_ref.rollout.free_cache_engine=False +actor_rollout_ref.rollout.enable_sleep_mode=False
actor_rollout_ref.rollout.gpu_memory_utilization=0.1 actor_rollout_ref.rollout.max_model_len=64
actor_rollout_ref.rollout.max_num_seqs=64 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64
actor_rollout_ref.rollout.agent.num_workers=1
actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64
reward.custom_reward_function.name=compute_score reward.num_workers=1
trainer.device=cpu trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.total_epochs=1 trainer.logger=[console]
trainer.val_before_train=False trainer.test_freq=-1 trainer.save_freq=-1
ray_kwargs.ray_init.num_cpus=16 +ray_kwargs.ray_init.num_gpus=1 +ray_kwargs.ray_init.include_dashboard=False
"""


def command(python: Path, model: Path, steps: int, place: Path) -> list[str]:
    """To be run in an empty folder: verl takes a folder named trl for the library."""
    options = _OPTIONS.split()
    return [
        *(str(python), "-m", "verl.trainer.main_ppo", *options),
        *(f"data.{files}_files={model}/train.parquet" for files in ("train", "val")),
        f"actor_rollout_ref.model.path={model}",
        f"reward.custom_reward_function.path={HERE / 'verl_reward.py'}",
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={place}",
    ]


def step_seconds(log: str) -> list[float]:
    """Seconds of every step that verl reports."""
    return [float(found) for found in _STEP.findall(log)]
