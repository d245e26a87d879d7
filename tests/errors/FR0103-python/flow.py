from flowrl.spec import FlowBuilder

flow = FlowBuilder("demo")
policy = flow.model("policy", "Qwen/Qwen2.5-7B", dtyp="float32")
actor = flow.trainer(
    "actor_train", policy, backend="fsdp",
    loss="sft", clip_ratio="wide",
)
actor.update(flow.data("train", "train.jsonl", response="answer"))
flow.step(prompts=8)
flow.spec()
