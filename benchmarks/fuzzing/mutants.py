"""The mutant of a number: the same seed and number give the same mutant, wherever it is made."""

from __future__ import annotations

from random import Random

from benchmarks.fuzzing.draft import Draft, Mutant
from benchmarks.fuzzing.seeds import Seed
from benchmarks.fuzzing.texts import BESIDE_OPERATIONS, BYTE_OPERATIONS, HOSTILE_OPERATIONS, TEXT_OPERATIONS
from benchmarks.fuzzing.trees import TREE_OPERATIONS, on_tree

GROUPS = ((TREE_OPERATIONS, 0.55), (TEXT_OPERATIONS, 0.19), (HOSTILE_OPERATIONS, 0.07), (BESIDE_OPERATIONS, 0.11))
"""What is left goes to bytes."""
COUNTS = (1, 1, 1, 1, 1, 2, 2, 2, 3, 5)
"""Operations of a mutant."""
ORDER = ("tree", "size", "text", "beside", "bytes")
"""Trees are read from sound texts, so what spoils the text comes later."""
EDGE_SHARE = 0.2


def mutant(number: int, seed: int, seeds: tuple[Seed, ...]) -> Mutant:
    random = Random(f"{seed}:{number}")
    origin = random.choice(seeds)
    draft = Draft(origin, random, seeds, origin.text)
    names = sorted((_operation(random) for _ in range(random.choice(COUNTS))), key=_rank)
    for name in names:
        _apply(draft, name)
    return Mutant(
        seed=origin.name,
        folder=origin.folder,
        operations=tuple(names),
        data=draft.bytes(),
        sets=tuple(draft.sets),
        cluster=draft.cluster,
        files=tuple(sorted(draft.files.items())),
    )


def _rank(name: str) -> int:
    return ORDER.index(name.partition(".")[0])


def _operation(random: Random) -> str:
    at = random.random()
    for group, share in GROUPS:
        if at < share:
            is_edge = group is TREE_OPERATIONS and random.random() < EDGE_SHARE
            return "tree.edge" if is_edge else random.choice(list(group))
        at -= share
    return random.choice(list(BYTE_OPERATIONS))


def _apply(draft: Draft, name: str) -> None:
    if name in TREE_OPERATIONS:
        on_tree(draft, name)
        return
    for group in (TEXT_OPERATIONS, HOSTILE_OPERATIONS, BESIDE_OPERATIONS, BYTE_OPERATIONS):
        if name in group:
            group[name](draft)
