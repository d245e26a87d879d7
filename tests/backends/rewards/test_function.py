import bdb
import os
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.rewards.builtin import overlong
from flowrl.backends.rewards.function import STARTS, FunctionReward
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import ScoreParams
from flowrl.graph.types import Field, Granularity, Unit
from flowrl.plan.plan import Layout
from tests.backends.placed import REWARD, placed
from tests.conftest import Told

FILE = """
import math

def length(response, bonus=0.0):
    return [len(text) + bonus for text in response]

def mapping(response):
    import numpy as np
    return {"rewards": np.ones(len(response))}

async def slow(response):
    import asyncio
    await asyncio.sleep(0.001)
    return [True for _ in response]

def on_c(response):
    return [1.0 if text != "c" else 1 / 0 for text in response]

def many(response):
    if len(response) > 1:
        raise RuntimeError("one at a time")
    return [1.0]

def short(response):
    return [1.0]

def nothing(response):
    return None

def odd(response):
    return [{"a": 1.0, "b": None, "c": math.nan, "d": "1.0"}[text] for text in response]

def sleeps(response):
    import time
    time.sleep(0.5)

def masks(loss_mask):
    return [sum(row) for row in loss_mask]

def ends_on_c(response):
    import os
    print("scoring", *response)
    if "c" in response:
        os._exit(3)
    return [1.0 for _ in response]

def steps(loss_mask, bonus=1.0):
    return [[bonus if own else 0.0 for own in row] for row in loss_mask]

async def own_steps(response):
    return [[float(n) for n in range(len(text))] for text in response]

def odd_steps(response):
    return [[math.nan, 1.0] if text == "c" else None if text == "d" else [1.0, 1.0] for text in response]

def best(prompt, response):
    assert len(set(prompt)) == 1
    return [float(text == max(response)) for text in response]

def pid(response):
    import os
    return [os.getpid() for _ in response]

def ends(response):
    import os
    os._exit(3)

def hog(response):
    import time
    held = []
    while True:
        held.append(b"x" * (8 << 20))
        time.sleep(0.01)

def ends_at_first(response):
    import os, pathlib
    flag = pathlib.Path(__file__).with_suffix(".flag")
    if not flag.exists():
        flag.touch()
        os._exit(1)
    return [1.0 for _ in response]

def waits_on_c(response):
    import time
    if "c" in response:
        time.sleep(60)
    return [1.0 for _ in response]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "r.py").write_text(FILE)
    return tmp_path


def batch() -> Batch:
    """Two prompts with two samples each."""
    prompts = np.asarray([3, 3, 5, 5], dtype=np.int64)
    ids = (prompts << 16) + np.asarray([0, 1, 0, 1])
    return Batch(ids, prompts, {"response": ("a", "b", "c", "d")})


def score(folder: Path, name: str, rows: Batch | None = None, on_error: str = "abort", **params: object) -> Result:
    given_params = ScoreParams(flavour="function", function=f"r.py:{name}", **params)  # type: ignore[arg-type]
    op = Op(id="reward.score", role="reward", method="score", granularity=Granularity.SAMPLE, params=given_params)
    role = Role(name="reward", kind=Kind.REWARD, on_error=on_error)
    setup = RankSetup(role=role, model=None, model_folder=None, layout=Layout(), folder=folder, ops=(op,))
    return called(setup, op, batch() if rows is None else rows)


def called(setup: RankSetup, op: Op, rows: Batch) -> Result:
    with closing(FunctionReward(setup)) as reward:
        return reward.call(Call(op=op, step=1, seed=0), rows)


def test_lists_in_and_a_list_out(folder: Path) -> None:
    result = score(folder, "length", args={"bonus": 0.5})
    assert result.batch is not None
    assert result.batch.array("rewards").tolist() == [1.5] * 4
    assert result.batch.array("rewards").dtype == np.float32
    assert result.metrics == {"rewards": (1.5, 4.0)}


@pytest.mark.parametrize("name", ["mapping", "slow"])
def test_mappings_arrays_bools_and_async(folder: Path, name: str) -> None:
    assert score(folder, name).metrics == {"rewards": (1.0, 4.0)}


def test_token_fields_are_lists_of_lists(folder: Path) -> None:
    mask = Ragged(np.asarray([True, True, False, True]), np.asarray([2, 2], dtype=np.int64))
    rows = Batch(batch().ids[:2], batch().prompt_ids[:2], {"loss_mask": mask})
    result = score(folder, "masks", rows)
    assert result.batch is not None
    assert result.batch.array("rewards").tolist() == [2.0, 1.0]


def test_no_rows(folder: Path) -> None:
    result = score(folder, "on_c", batch().select([]))
    assert result.batch is not None
    assert len(result.batch) == 0


@pytest.mark.parametrize(
    ("name", "code", "case"),
    [
        ("on_c", "FR0822", ""),
        ("many", "FR0822", "together"),
        ("short", "FR0823", "one"),
        ("nothing", "FR0823", "none"),
        ("odd", "FR0824", ""),
        ("sleeps", "FR0825", ""),
        ("ends_on_c", "FR0826", ""),
        ("hog", "FR0827", ""),
    ],
)
def test_a_fault_names_function_row_and_cause(
    folder: Path, name: str, code: str, case: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.backends.user_process.start.share_of_memory", lambda ranks: ranks << 27)
    written = f'function: "r.py:{name}"' + (", timeout_seconds: 0.05" if name == "sleeps" else "")
    graph = placed(folder, {REWARD: f"reward: {{{written}}}"})
    op, role = graph.op("reward.score"), graph.role("reward")
    setup = RankSetup(role=role, model=None, model_folder=None, layout=Layout(), folder=folder, ops=(op,))
    with pytest.raises(FlowError) as caught:
        called(setup, op, batch())
    told(caught.value, code, case)
    assert caught.value.diagnostics[0].exit_code == 5


def test_on_error_default_scores_zero(folder: Path) -> None:
    result = score(folder, "on_c", on_error="default")
    assert result.batch is not None
    assert result.batch.array("rewards").tolist() == [1.0, 1.0, 0.0, 1.0]
    assert result.metrics["failed"] == (0.25, 4.0)


def test_on_error_drop_takes_the_group(folder: Path) -> None:
    result = score(folder, "on_c", on_error="drop")
    assert result.batch is not None
    assert result.batch.prompt_ids.tolist() == [3, 3]
    assert result.metrics["rewards"] == (1.0, 2.0)
    everything = score(folder, "nothing", on_error="drop")
    assert everything.batch is not None
    assert len(everything.batch) == 0


def test_a_row_that_ends_the_process_is_found(folder: Path) -> None:
    result = score(folder, "ends_on_c", on_error="default")
    assert result.batch is not None
    assert result.batch.array("rewards").tolist() == [1.0, 1.0, 0.0, 1.0]
    assert result.metrics["failed"] == (0.25, 4.0)
    assert result.metrics["restarts"] == (3.0, 1.0)  # after 4 rows, after 2, after the row itself


def test_a_process_that_ends_once_costs_no_row(folder: Path) -> None:
    result = score(folder, "ends_at_first")
    assert result.metrics == {"rewards": (1.0, 4.0), "restarts": (1.0, 1.0)}


def test_one_that_always_ends_its_process_is_given_up(folder: Path) -> None:
    many = np.arange(64, dtype=np.int64)
    rows = Batch(many << 16, many, {"response": ("a",) * 64})
    result = score(folder, "ends", rows, on_error="drop")
    assert result.batch is not None
    assert len(result.batch) == 0
    assert result.metrics["restarts"][0] <= STARTS


def test_one_that_waits_is_ended_and_its_rows_fall_to_the_policy(folder: Path) -> None:
    result = score(folder, "waits_on_c", on_error="default", timeout_seconds=0.3)
    assert result.metrics["failed"] == (1.0, 4.0)


@pytest.mark.parametrize("text", ["import os\nos._exit(4)\n", "import ctypes\nctypes.string_at(0)\n"])
def test_a_file_that_ends_its_process(folder: Path, text: str) -> None:
    (folder / "r.py").write_text(text)
    with pytest.raises(FlowError) as caught:
        score(folder, "length")
    assert caught.value.diagnostics[0].code == "FR0828"


def test_the_frame_of_a_file_that_ends_its_process(folder: Path, told: Told) -> None:
    graph = placed(folder, {REWARD: 'reward: {function: "r.py:length"}'})
    (folder / "r.py").write_text("import os\nprint('no licence')\nos._exit(4)\n")
    op, role = graph.op("reward.score"), graph.role("reward")
    setup = RankSetup(role=role, model=None, model_folder=None, layout=Layout(), folder=folder, ops=(op,))
    with pytest.raises(FlowError) as caught:
        FunctionReward(setup)
    told(caught.value, "FR0828", "")


def test_under_a_debugger_the_function_runs_in_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = np.float32(os.getpid())
    here = [score(folder, "pid").metrics["rewards"][0]]
    monkeypatch.setattr(sys, "gettrace", lambda: bdb.Bdb().trace_dispatch)
    here.append(score(folder, "pid").metrics["rewards"][0])
    assert [value == own for value in here] == [False, True]


def test_a_missing_function_is_told_when_the_rank_is_made(folder: Path) -> None:
    with pytest.raises(FlowError) as caught:
        score(folder, "lenght")
    assert caught.value.diagnostics[0].code == "FR0820"


def test_overlong_is_dapos_soft_punishment() -> None:
    lengths = [0, 10, 16, 18, 20, 30]
    masks = [[False, False] + [True] * n for n in lengths]
    # DAPO (Yu et al. 2025), eq. 13 with L_max = 20, L_cache = 4, by hand.
    assert overlong(masks, max_tokens=20, buffer_tokens=4) == [0.0, 0.0, 0.0, -0.5, -1.0, -1.0]


MASK = [[0, 1, 1, 0, 1], [0, 1], [1, 0, 1], [0, 0, 1, 1]]
"""Own tokens 3, 1, 2, 2 and turns 2, 1, 2, 1 of the four rows."""


def process_rows(responses: tuple[str, ...] = ("aaa", "b", "cc", "dd")) -> Batch:
    mask = Ragged.of([np.asarray(row) for row in MASK], np.bool_)
    return Batch(batch().ids, batch().prompt_ids, {"response": responses, "loss_mask": mask})


def process(folder: Path, name: str, unit: Unit, rows: Batch, on_error: str = "abort", **params: object) -> Result:
    given = ScoreParams(flavour="function", function=f"r.py:{name}", **params)  # type: ignore[arg-type]
    outputs = (Field(name="rewards", unit=unit, dtype="f32"),)
    op = Op(
        id="reward.score", role="reward", method="score", granularity=Granularity.SAMPLE, outputs=outputs, params=given
    )
    role = Role(name="reward", kind=Kind.REWARD, on_error=on_error)
    setup = RankSetup(role=role, model=None, model_folder=None, layout=Layout(), folder=folder, ops=(op,))
    return called(setup, op, rows)


def lists_of(result: Result) -> list[list[float]]:
    assert result.batch is not None
    return [row.tolist() for row in result.batch.ragged("rewards").rows()]


def test_rewards_of_each_token(folder: Path) -> None:
    result = process(folder, "steps", Unit.TOKEN, process_rows(), args={"bonus": 0.5})
    assert lists_of(result) == [[0.5 * own for own in row] for row in MASK]
    assert result.metrics == {"rewards": (1.0, 4.0)}  # the mean of sums 1.5, 0.5, 1, 1


def test_rewards_of_own_tokens_stand_on_them(folder: Path) -> None:
    """The function does not read the mask that its numbers are put on."""
    result = process(folder, "own_steps", Unit.TOKEN, process_rows())
    assert lists_of(result) == [[0, 0, 1, 0, 2], [0, 0], [0, 0, 1], [0, 0, 0, 1]]


def test_rewards_of_each_turn(folder: Path) -> None:
    result = process(folder, "own_steps", Unit.TURN, process_rows(("aa", "b", "cc", "d")))
    assert lists_of(result) == [[0, 1], [0], [0, 1], [0]]


@pytest.mark.parametrize(("on_error", "left"), [("default", [[0] * 5, [1, 1], [0] * 3, [0] * 4]), ("drop", [])])
def test_rows_of_other_lengths_and_odd_numbers_have_no_reward(
    folder: Path, on_error: str, left: list[list[float]]
) -> None:
    """Two numbers for each row: of the first three tokens are its own, the second has two, c and d are no numbers."""
    result = process(folder, "odd_steps", Unit.TOKEN, process_rows(("a", "b", "c", "d")), on_error)
    assert lists_of(result) == left
    assert result.metrics["failed"] == (0.75, 4.0)


def test_numbers_for_other_places_are_told(folder: Path) -> None:
    with pytest.raises(FlowError, match="2 values for 5 tokens, 3 of them the policy's own"):
        process(folder, "own_steps", Unit.TOKEN, process_rows(("aa", "b", "cc", "dd")))
    with pytest.raises(FlowError, match="3 values for 2 turns"):
        process(folder, "own_steps", Unit.TURN, process_rows())


def test_a_comparison_is_called_for_each_group(folder: Path) -> None:
    rows = Batch(batch().ids, batch().prompt_ids, {**batch().columns, "prompt": ("x", "x", "y", "y")})
    params = ScoreParams(flavour="function", function="r.py:best")
    op = Op(id="reward.compare", role="reward", method="compare", granularity=Granularity.GROUP, params=params)
    role = Role(name="reward", kind=Kind.REWARD)
    setup = RankSetup(role=role, model=None, model_folder=None, layout=Layout(), folder=folder, ops=(op,))
    made = called(setup, op, rows).batch
    assert made is not None
    assert made.array("rewards").tolist() == [0.0, 1.0, 0.0, 1.0]
