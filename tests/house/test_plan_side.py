"""The plan side runs on a laptop without torch, ray, vllm, transformers or numpy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.house.tree import ROOT, plan_side_modules

REFUSE = """
import sys

class Refuse:
    names = {"torch", "ray", "vllm", "transformers", "megatron", "numpy"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"{name} is refused here", name=name)

sys.meta_path.insert(0, Refuse())
"""


def run_without_torch(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", REFUSE + code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_hook_refuses() -> None:
    done = run_without_torch("import torch")
    assert done.returncode == 1
    assert "torch is refused here" in done.stderr


def test_plan_side_imports_without_torch() -> None:
    names = plan_side_modules()
    assert "flowrl.cli.main" in names
    assert "flowrl.plan.plan" in names
    done = run_without_torch(f"import importlib\nfor name in {names!r}: importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["explain", "FR9901"]])
def test_commands_without_torch(arguments: list[str]) -> None:
    done = run_without_torch(f"from flowrl.cli.main import main\nmain({arguments!r})")
    assert done.returncode == 0, done.stderr


def test_ppo_plans_for_sixteen_gpus_without_torch() -> None:
    arguments = ["plan", "examples/ppo.yaml", "--cluster", "16xH100-80G", "--format", "json"]
    done = run_without_torch(f"from flowrl.cli.main import main\nmain({arguments!r})")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    group = plan["cluster"]["groups"][0]
    assert (group["nodes"], group["devices_per_node"], group["device"]["name"]) == (2, 8, "H100-80G")
    assert {"actor_train", "actor_infer", "critic", "reference"} <= {
        placed["role"] for pool in plan["stages"][0]["pools"] for placed in pool["roles"]
    }


def test_a_run_without_torch_names_the_package_and_its_extra() -> None:
    done = run_without_torch("from flowrl.cli.main import main\nmain(['run', 'examples/ppo.yaml'])")
    assert done.returncode == 1
    assert done.stderr.startswith("error[FR0913]: a package is missing")
    assert "fsdp" in done.stderr
