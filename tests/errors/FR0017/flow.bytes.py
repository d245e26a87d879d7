FLOW = b"flowrl: 1\nname: de\x07mo\n"
