FLOW = "flowrl: 1\nname: demo\n".encode("utf-16")
