"""Opens the numbers of a plan: by which key each is found, and what it is made of. Pure; reads plans, runs nothing."""
