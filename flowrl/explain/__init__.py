"""What would help and why not. (Fills with placement search.)"""
