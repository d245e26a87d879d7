FLOW = "flowrl: 1\nname: démo\n".encode("latin-1")
