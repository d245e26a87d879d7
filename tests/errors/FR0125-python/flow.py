from flowrl.spec import FlowBuilder

flow = FlowBuilder("demo")
flow.model("policy", "Qwen/Qwen2.5-7B")
flow.model("policy", "Qwen/Qwen2.5-3B")
flow.spec()
