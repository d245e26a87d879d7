import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from flowrl.backends import registry
from flowrl.backends.contract import RankSetup
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind, Role
from flowrl.plan.plan import Layout
from tests.backends.placed import placed
from tests.conftest import Told


def role(kind: Kind, backend: str | None, model: str | None = None) -> Role:
    return Role(name="r", kind=kind, backend=backend, model=model)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [(Kind.TRAINER, "deepspeed"), (Kind.GENERATOR, "sglang")],
)
def test_what_is_not_built_is_refused(kind: Kind, backend: str | None) -> None:
    with pytest.raises(FlowError) as caught:
        registry.make_rank(RankSetup(role=role(kind, backend), model=None, model_folder=None, layout=Layout()))
    assert [d.code for d in caught.value.diagnostics] == ["FR0801"]


def test_a_backend_that_nobody_knows_is_refused(tmp_path: Path, told: Told) -> None:
    written = placed(tmp_path, {"backend: hf": "backend: sglong"}).role("actor_infer")
    with pytest.raises(FlowError) as caught:
        registry.make_rank(RankSetup(role=written, model=None, model_folder=None, layout=Layout()))
    told(caught.value, "FR0802")


def test_a_role_without_backend() -> None:
    assert registry.locate(role(Kind.REWARD, None)).endswith("host_reward")
    assert registry.locate(role(Kind.REWARD, None, model="rm")).endswith("ModelReward")
    assert registry.locate(role(Kind.ESTIMATOR, None)).endswith("Estimator")


def test_third_parties_join_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="generator.mine", value="pathlib:Path", group=registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    assert registry.locate(role(Kind.GENERATOR, "mine")) == "pathlib:Path"
    assert registry.built(Kind.GENERATOR) == {"diffusers", "hf", "vllm", "mine"}


def test_every_row_is_a_file() -> None:
    package = Path(registry.__file__).parent.parent.parent
    places = {value.partition(":")[0].replace(".", "/") + ".py" for value in registry.BACKENDS.values()}
    assert not [place for place in places if not (package / place).is_file()]


def test_the_table_needs_no_torch() -> None:
    code = "import sys, flowrl.backends.registry as r; assert r.built('trainer'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
