FLOW = b"flowrl: 1\nname: demo\nvars: {deep: " + b"[" * 70 + b"]" * 70 + b"}\n"
