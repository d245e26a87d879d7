"""The rules of rules.py in words, printed with the table."""

from __future__ import annotations

from collections.abc import Mapping

RULES: Mapping[str, str] = {
    "response": "mean response = E[min(L, most)], L lognormal: median 7,000, sigma 1.4 for policies that reason (R1, "
    "Distill, Qwen3, Thinking, Kimi, Moonlight, GPT-OSS), 2,000 and 1.2 for episodes of several turns, else 500 and "
    "1.1; of algorithms with fixed lengths the most itself; a most that is not said is 4 times the mean",
    "prompt": "mean prompt = 150 tokens, at most half of its most; of fixed lengths the most itself",
    "batch": "prompts x samples, by algorithm: DAPO 512 x 16, GRPO 128 x 8, with a critic 1,024 x 1, others 512 x 16",
    "samples": "samples a prompt = those of tokens/s * step time / mean length, where all three are said; else as "
    "`batch`",
    "updates": "4 updates a step; HybridFlow's 8 (its section 8.1)",
    "network": "a rate between nodes, where the record gives it, is that of a wire that a node's devices share, 85 % "
    "of it achieved; else the catalogue's for each device",
    "micro-batch": "micro_batch_tokens = the longest sample, at least 4,096; NeMo RL packs to the longest sample",
    "roles": "roles as listed; PPO without words on the critic has actor, reference, critic and reward of its size",
    "layout": "a layout that is not said is the planner's: tp, pp smallest that fit, tp up to 8 until "
    "every rank has a row; of FSDP and DeepSpeed dp",
    "host optimizer": "OpenRLHF keeps optimizers in host memory (--adam_offload of its scripts and tables)",
    "batches of generation": "of HF and DeepSpeed the micro rollout batch of the notes; OpenRLHF, whose rows are older "
    "than its pull request 507, calls its engines for one micro rollout batch at a time: that of the notes, else 8, "
    "the default of its train_ppo_ray.py",
    "graphs": "engines capture graphs; ReaL decodes with its trainer's modules, launch by launch; DAPO of NeMo RL "
    "has enforce_eager (its recipes dapo-*.yaml)",
    "dynamic sampling": "DAPO of NeMo RL generates 3 times the prompts that it trains on, once a step "
    "(batch_multiplier of its recipes dapo-*.yaml); of others the prompts that they train on",
    "generations": "of backends: NeMo RL hands weights over in packed buffers; vLLM before 0.6, by the version that "
    "the record says, and OpenRLHF's, is `vllm@v0`",
    "split": "shares of the parts: as said; else half for generation; standalone models 1:1:2:2:2 (reference, reward, "
    "actor, critic, engines)",
    "lag": "async or one-step off without a number: lag 1; a threshold under 1 is lag 1 with partial rollout",
    "in flight": "asynchronous NeMo RL hands weights over while responses go on, and waits for no tail of a step "
    "(in_flight_weight_updates of its recipes *-async-1off.yaml)",
    "old log-probs": "recomputed before the first update, unless the notes take the rollout's",
    "recompute": "activations are recomputed in full; rows are packed unless the notes say they are padded",
    "gradients": "in float32; NeMo RL's in bfloat16 (grad_reduce_in_fp32 of its grpo_math_1B.yaml)",
    "offload": "what trains leaves the devices while engines work, but in systems that generate in place (ReaL, "
    "DeepSpeed-Chat, HybridFlow, NeMo-Aligner), whose engines drop their weights where they leave: the trainer has "
    "them",
    "lending": "records whose trainers lend idle devices to generation within a step are excluded: no placement does",
    "gpu": "a type that is not in its field is taken from the notes; none there: excluded",
    "gpus a node": "8; of GB200 4",
    "effective rates": "AReaL's effective tokens/s are those of one update over the time of a step: so read they agree "
    "with the hours and the ablation of the same system, read otherwise they contradict them fourfold",
}
