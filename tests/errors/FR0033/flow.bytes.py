VALUES = "\n".join(f"  v{i}: '{{{{ n * {i} }}}}'" for i in range(501))
FLOW = f"""flowrl: 1
name: demo
vars:
  n: 2
{VALUES}
step: {{prompts: 8}}
""".encode()
