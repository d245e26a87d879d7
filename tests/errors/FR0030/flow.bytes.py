LEFT = ",\n    ".join(f"r{i}.score" for i in range(101))
RIGHT = ",\n    ".join(f"a{i}.estimate" for i in range(100))
FLOW = f"""flowrl: 1
name: demo
edges:
  - data.train -> actor_infer.generate
  - >-
    {LEFT}
    -> {RIGHT}
step: {{prompts: 8}}
""".encode()
