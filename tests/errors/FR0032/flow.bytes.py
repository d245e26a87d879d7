ROLES = "\n".join(f"  r{i}: {{kind: reward, function: 'rewards.py:score'}}" for i in range(1001))
FLOW = f"""flowrl: 1
name: demo
roles:
{ROLES}
step: {{prompts: 8}}
""".encode()
