FLOW = b"flowrl: 1\nname: demo\n" + b"# padding\n" * 200_000
