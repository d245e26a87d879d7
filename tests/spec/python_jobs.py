"""The eleven jobs of examples/flows said in Python, each a function that builds one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flowrl.spec import FlowBuilder

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "flows"
ADAMW = {"name": "adamw", "lr": 1e-6}


def begin(name: str, use: str | None = None, nodes: int = 1) -> FlowBuilder:
    flow = FlowBuilder(name, use=use, folder=str(FOLDER))
    flow.cluster(gpu="H100-80G", nodes=nodes, gpus_per_node=8)
    return flow


def grpo_colocated() -> FlowBuilder:
    flow = begin("grpo-7b")
    policy = flow.model("policy", "Qwen/Qwen2.5-7B-Instruct")
    train = flow.data("train", "data/math.jsonl", prompt="problem", keep=["answer"], max_prompt_tokens=1024)
    val = flow.data("val", "data/aime.jsonl", prompt="problem", keep=["answer"], max_prompt_tokens=1024)
    actor = flow.trainer(
        "actor_train",
        policy,
        backend="fsdp",
        optimizer=ADAMW,
        loss="ppo",
        clip_ratio=0.2,
        aggregate="sequence_mean",
        kl={"coef": 0.001, "form": "k3"},
    )
    infer = flow.generator("actor_infer", policy, backend="vllm", max_response_tokens=4096, temperature=1.0)
    reference = flow.scorer("reference", policy, backend="fsdp")
    reward = flow.reward("reward", "rewards.py:math")
    advantage = flow.estimator("advantage", "grpo")

    batch = infer.generate(train)
    actor.update(advantage.estimate(reward.score(batch)) & reference.log_probs(batch))
    actor >> infer
    reward.score(infer.generate(val, label="val", every_steps=20, temperature=0.0, samples_per_prompt=1))

    flow.step(prompts=128, samples_per_prompt=8, updates=2)
    flow.placement("colocated")
    flow.run(steps=200, checkpoint_every_steps=20, seed=0)
    return flow


def ppo_reward_model_split() -> FlowBuilder:
    flow = begin("ppo-rm-32", use="ppo", nodes=4)
    flow.model("policy", "Qwen/Qwen2.5-7B-Instruct")
    flow.model("value", "Qwen/Qwen2.5-7B-Instruct", head="scalar")
    scorer = flow.model("rm", "Skywork/Skywork-Reward-V2-Llama-3.1-8B", head="scalar")
    flow.data("train", "data/hh.jsonl", prompt="prompt", max_prompt_tokens=1024)
    actor, infer = flow.trainer("actor_train"), flow.generator("actor_infer")
    reference = flow.scorer("reference")
    critic = flow.trainer("critic", loss="value", clip_value=0.2, epochs=2)
    reward = flow.reward("reward", model=scorer, backend="fsdp")
    flow.estimator("advantage", "gae", gamma=1.0, lam=0.95, kl={"coef": 0.02, "form": "k1"})
    actor.update(flow.op("advantage.estimate"), start_step=20)
    flow.step(prompts=512, samples_per_prompt=1, updates=4)
    flow.pool("rollout", gpus=16, roles=[infer], layouts={infer: {"tp": 2}})
    flow.pool("train", gpus=16, roles=[actor, critic, reference, reward])
    return flow


def dapo() -> FlowBuilder:
    flow = begin("dapo-32b", nodes=16)
    policy = flow.model("policy", "Qwen/Qwen2.5-32B")
    train = flow.data("train", "data/dapo17k.jsonl", prompt="prompt", keep=["answer"], max_prompt_tokens=2048)
    actor = flow.trainer(
        "actor_train",
        policy,
        backend="fsdp",
        optimizer=ADAMW,
        loss="ppo",
        clip_ratio={"low": 0.2, "high": 0.28},
        aggregate="token_mean",
    )
    infer = flow.generator("actor_infer", policy, backend="vllm", max_response_tokens=20480)

    batch = infer.generate(train)
    correct = flow.reward("correct", "rewards.py:dapo")
    overlong = flow.reward(
        "overlong", "flowrl:overlong", args={"max_tokens": 20480, "buffer_tokens": 4096, "penalty": 1.0}
    )
    right, length = correct.score(batch), overlong.score(batch)
    informative = flow.filter("informative", "zero_spread", unit="group", by=right["rewards"])
    kept = informative.select(right)
    total = flow.reward("reward", combine={correct: 1.0, overlong: 1.0}).score(kept, right, length)
    actor.update(flow.estimator("advantage", "grpo").estimate(total))
    actor >> infer

    flow.step(prompts=512, samples_per_prompt=16, updates=16, refill={"max_rounds": 10, "oversample": 1.5})
    flow.assume(kept, keep=0.4)
    flow.assume(batch, response_tokens={"mean": 5000, "p99": 20480})
    flow.run(steps=500)
    return flow


def async_96_32() -> FlowBuilder:
    flow = begin("async-grpo-128", use="grpo", nodes=16)
    flow.model("policy", "Qwen/Qwen2.5-32B")
    flow.data("train", "data/dapo17k.jsonl", prompt="prompt", keep=["answer"], max_prompt_tokens=2048)
    actor = flow.trainer(
        "actor_train",
        backend="megatron",
        old_log_probs="recompute",
        correction={"name": "tis", "unit": "token", "cap": 2.0},
    )
    infer = flow.generator("actor_infer", max_response_tokens=16384)
    reference = flow.scorer("reference")
    flow.reward("reward", "rewards.py:math")
    flow.weights(actor, infer, every_steps=1, transport="nccl")
    flow.step(prompts=256, samples_per_prompt=16, updates=1)
    flow.schedule(max_lag=2, partial_rollout=True, when_stale="wait")
    flow.pool("rollout", gpus=96, roles=[infer], layouts={infer: {"tp": 4}})
    flow.pool("train", gpus=32, roles=[actor, reference], layouts={actor: {"tp": 4, "pp": 2}})
    flow.run(steps=1000)
    return flow


def domain_rewards() -> FlowBuilder:
    flow = begin("roll-rlvr", nodes=4)
    policy = flow.model("policy", "Qwen/Qwen2.5-7B")
    judge_lm = flow.model("judge_lm", "Qwen/Qwen2.5-32B-Instruct")
    math = flow.data("math", "data/math.jsonl", prompt="problem", keep=["answer"], max_prompt_tokens=2048)
    code = flow.data("code", "data/code.jsonl", prompt="task", keep=["tests"], max_prompt_tokens=2048)
    chat = flow.data("chat", "data/chat.jsonl", prompt="prompt", max_prompt_tokens=2048)
    train = flow.data("train", mix={math: 0.5, code: 0.3, chat: 0.2}, order="interleave", tag="domain")
    actor = flow.trainer("actor_train", policy, backend="megatron", optimizer=ADAMW, loss="ppo")
    infer = flow.generator("actor_infer", policy, backend="vllm", max_response_tokens=4096)
    math_rule = flow.reward("math_rule", "rewards.py:math")
    sandbox = {"image": "py311", "tests": "tests", "timeout_seconds": 10, "parallel": 256}
    code_box = flow.reward("code_box", sandbox=sandbox)
    chat_judge = flow.reward(
        "chat_judge",
        judge={"template": "judge.j2", "parse": "judge.py:score"},
        model=judge_lm,
        backend="vllm",
        generate={"max_response_tokens": 256, "temperature": 0.0},
    )
    routes = {"math": math_rule, "code": code_box, "chat": chat_judge}
    reward = flow.reward("reward", router={"by": "domain", "routes": routes})

    scored = reward.score(infer.generate(train))
    actor.update(flow.estimator("advantage", "reinforce_pp").estimate(scored))
    actor >> infer
    flow.step(prompts=256, samples_per_prompt=8, updates=2)
    return flow


def sokoban_gigpo() -> FlowBuilder:
    flow = begin("sokoban-gigpo")
    policy = flow.model("policy", "Qwen/Qwen2.5-3B-Instruct")
    actor = flow.trainer(
        "actor_train",
        policy,
        backend="fsdp",
        optimizer=ADAMW,
        loss="ppo",
        clip_ratio={"low": 0.2, "high": 0.28},
    )
    infer = flow.generator(
        "actor_infer",
        policy,
        backend="vllm",
        max_response_tokens=4096,
        max_turn_tokens=256,
        max_context_tokens=8192,
    )
    sokoban = flow.env("sokoban", "gem:game:Sokoban-v0", args={"boxes": 1}, max_turns=10, parallel=128)

    sokoban.reset(flow.data("train", seeds=100000))
    played = infer.interact(sokoban)
    starpo = flow.filter("starpo", "spread", unit="group", keep_top=0.25, by="sokoban.rewards")
    kept = starpo.select(played)
    actor.update(flow.estimator("advantage", "gigpo", gamma=0.95, step_weight=1.0).estimate(kept))
    actor >> infer

    flow.step(prompts=8, samples_per_prompt=16, updates=1)
    flow.assume("sokoban.step", seconds={"mean": 0.01, "p99": 0.1}, turns={"mean": 5})
    return flow


def debate_two_policies() -> FlowBuilder:
    flow = begin("debate", nodes=2)
    policy = flow.model("policy", "Qwen/Qwen2.5-3B-Instruct")
    train = flow.data("train", "data/math.jsonl", prompt="problem", keep=["answer"], max_prompt_tokens=1024)
    debate = flow.env("debate", "debate.py:Debate", max_turns=3)
    debate.reset(train)
    actors = {
        name: flow.trainer(f"{name}_train", policy, backend="fsdp", optimizer=ADAMW, loss="ppo")
        for name in ("alice", "bob")
    }
    players = {
        name: flow.generator(f"{name}_infer", policy, backend="vllm", max_response_tokens=3072, max_turn_tokens=1024)
        for name in actors
    }
    turns = dict(zip(players, debate.interact(*players.values()), strict=True))
    for name, function in {"alice": "r.py:solver", "bob": "r.py:critic"}.items():
        scored = flow.reward(f"{name}_reward", function).score(turns[name])
        actors[name].update(flow.estimator(f"{name}_adv", "grpo").estimate(scored))
        actors[name] >> players[name]
    flow.step(prompts=64, samples_per_prompt=8, updates=1)
    return flow


def distill_lora() -> FlowBuilder:
    flow = begin("opd-72b-7b", nodes=2)
    student = flow.model("student", "Qwen/Qwen2.5-7B", lora={"rank": 32, "alpha": 64, "targets": "all_linear"})
    big = flow.model("teacher", "Qwen/Qwen2.5-72B-Instruct")
    train = flow.data("train", "data/prompts.jsonl", prompt="prompt", max_prompt_tokens=1024)
    actor = flow.trainer("actor_train", student, backend="fsdp", optimizer={"name": "adamw", "lr": 1e-4}, loss="ppo")
    infer = flow.generator("actor_infer", student, backend="vllm", max_response_tokens=4096)
    teacher = flow.scorer("teacher", big, backend="vllm")
    advantage = flow.estimator("advantage", "reverse_kl", coef=1.0)

    batch = infer.generate(train)
    actor.update(advantage.estimate(teacher.log_probs(batch) & actor.log_probs(batch)))
    actor >> infer
    flow.step(prompts=256, samples_per_prompt=4, updates=1)
    return flow


def mobile_r1_stages() -> FlowBuilder:
    flow = begin("mobile-r1", nodes=4)
    flow.model("policy", "Qwen/Qwen2.5-VL-3B-Instruct")
    seen = {"prompt": "instruction", "images": "screenshot"}

    sft = flow.stage("sft", use="sft")
    sft.data("train", "data/traj.jsonl", **seen, response="output", max_prompt_tokens=4096)
    sft.step(prompts=128)
    sft.run(steps=400)

    action = flow.stage("action", use="grpo")
    action.model("policy", sft.trainer("actor_train"))
    action.data("train", "data/actions.jsonl", **seen, keep=["action"], max_prompt_tokens=4096)
    val = action.data("val", "data/val.jsonl", **seen, keep=["action"], max_prompt_tokens=4096)
    infer = action.generator("actor_infer")
    held_out = infer.generate(val, label="val", every_steps=20, temperature=0.0, samples_per_prompt=1)
    scored = action.reward("reward", "r.py:action").score(held_out)
    action.run(steps=300)
    action.gate(scored["rewards"], at_least=0.6, when="first", otherwise="stop")

    task = flow.stage("task", use="grpo")
    task.model("policy", action.trainer("actor_train"))
    train = task.data("train", "data/tasks.jsonl", prompt="task", max_prompt_tokens=4096)
    phone = task.env("phone", "mobile.py:Android", max_turns=20, parallel=64)
    infer = task.generator("actor_infer", max_response_tokens=10240, max_turn_tokens=512, max_context_tokens=32768)
    judge = {"template": "judge.j2", "parse": "j.py:score", "endpoint": "https://judge/v1", "parallel": 32}
    task.reward("reward", judge=judge)
    infer.generate(train, remove=True)
    phone.reset(train)
    infer.interact(phone)
    task.step(prompts=16, samples_per_prompt=8, updates=1)
    task.run(steps=200)
    return flow


def online_dpo_judge() -> FlowBuilder:
    flow = begin("online-dpo")
    policy = flow.model("policy", "Qwen/Qwen2.5-7B-Instruct")
    judge_lm = flow.model("judge_lm", "Qwen/Qwen2.5-32B-Instruct")
    train = flow.data("train", "data/ultra.jsonl", prompt="prompt", max_prompt_tokens=1024)
    optimizer = {"name": "adamw", "lr": 5e-7}
    actor = flow.trainer("actor_train", policy, backend="fsdp", optimizer=optimizer, loss="dpo", beta=0.1)
    infer = flow.generator("actor_infer", policy, backend="vllm", max_response_tokens=1024, temperature=0.9)
    reference = flow.scorer("reference", policy, backend="fsdp")
    reward = flow.reward(
        "reward",
        judge={"template": "pair.j2", "parse": "j.py:winner"},
        model=judge_lm,
        backend="vllm",
        generate={"max_response_tokens": 16},
    )
    batch = infer.generate(train)
    pairs = flow.estimator("pairs", "best_worst").estimate(reward.compare(batch))
    actor.update(pairs, reference.log_probs(batch))
    actor >> infer
    flow.step(prompts=128, samples_per_prompt=2, updates=1)
    return flow


def diffusion_grpo() -> FlowBuilder:
    flow = begin("dance-grpo", nodes=2)
    policy = flow.model("policy", "black-forest-labs/FLUX.1-dev", head="denoiser")
    train = flow.data("train", "data/prompts.jsonl", prompt="text", max_prompt_tokens=512)
    optimizer = {"name": "adamw", "lr": 1e-5}
    actor = flow.trainer(
        "actor_train", policy, backend="fsdp", optimizer=optimizer, loss="ppo", clip_ratio=1e-4, action_share=0.6
    )
    infer = flow.generator(
        "actor_infer",
        policy,
        backend="diffusers",
        denoise_steps=16,
        eta=0.3,
        height=720,
        width=720,
        noise_per="prompt",
    )
    reward = flow.reward("reward", "hps.py:score", engine={"gpu_bytes": 6_000_000_000})
    scored = reward.score(infer.generate(train))
    actor.update(flow.estimator("advantage", "grpo").estimate(scored))
    actor >> infer
    flow.step(prompts=32, samples_per_prompt=12, updates=4)
    return flow


JOBS: Mapping[str, Callable[[], FlowBuilder]] = {
    "01-grpo-colocated": grpo_colocated,
    "02-ppo-reward-model-split": ppo_reward_model_split,
    "03-dapo": dapo,
    "04-async-96-32": async_96_32,
    "05-domain-rewards": domain_rewards,
    "06-sokoban-gigpo": sokoban_gigpo,
    "07-debate-two-policies": debate_two_policies,
    "08-distill-lora": distill_lora,
    "09-mobile-r1-stages": mobile_r1_stages,
    "10-online-dpo-judge": online_dpo_judge,
    "11-diffusion-grpo": diffusion_grpo,
}
