from flowrl.spec import FlowBuilder

flow = FlowBuilder("demo")
other = FlowBuilder("other")
policy = flow.model("policy", "Qwen/Qwen2.5-7B")
actor = flow.trainer("actor_train", policy, backend="fsdp", loss="sft")
actor.update(other.data("train", "train.jsonl"))
actor.update()
flow.step(prompts=8)
flow.spec()
