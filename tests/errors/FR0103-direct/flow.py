from flowrl.spec import FlowBuilder

flow = FlowBuilder("demo")
policy = flow.model("policy", "Qwen/Qwen2.5-7B")
actor = flow.trainer("actor_train", policy, backend="fsdp", los="sft")
actor.update(flow.data("train", "train.jsonl", response="answer"))
flow.step(prompts=8)
flow.spec()
