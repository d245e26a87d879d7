"""What the code is run by: the first words of each program in the sandbox, and how its success is told.

A test in words runs after the code, in its namespace, and the program then gives back a word that came with the test.
So a program that ends early has not passed. Code that looks for the word can find it: a test in the code's own process
cannot be hidden from it (docs/adr/0125). A test of input and output is compared outside.
"""

from __future__ import annotations

CODE, TEST, WORD = 3, 4, 5
"""Descriptors: the code, the test with its word, and where the word goes."""

ASSERTED = f"""
import os
def read(number):
    with open(number, "rb") as file:
        return file.read().decode()
def run():
    space = {{"__name__": "response", "__builtins__": __builtins__}}
    exec(compile(read({CODE}), "response.py", "exec"), space)
    word, _, test = read({TEST}).partition("\\n")
    exec(compile(test, "test.py", "exec"), space)
    os.write({WORD}, word.encode())
run()
"""
"""Runs the code, then the test."""

PIPED = f"""
import os
with open({CODE}, "rb") as file:
    code = file.read().decode()
os.close({TEST})
os.close({WORD})
exec(compile(code, "response.py", "exec"), {{"__name__": "__main__", "__builtins__": __builtins__}})
"""
"""Runs the code as a program of its own, which reads stdin and writes stdout."""
