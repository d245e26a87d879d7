import math

import pytest
import torch

from flowrl.backends.trainers.fsdp.optimizer import learning_rate, make_optimizer
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.params import OptimizerParams


def test_warm_up_and_decay() -> None:
    constant = OptimizerParams(lr=2.0, warmup_steps=4)
    assert [learning_rate(constant, step, None) for step in (1, 2, 4, 5, 99)] == [0.5, 1.0, 2.0, 2.0, 2.0]
    linear = OptimizerParams(lr=2.0, schedule="linear", warmup_steps=2)
    # Ten steps after the warm-up of two: 2, 1.8, … 0.2, and never 0 while there is a step to make.
    assert [learning_rate(linear, step, 12) for step in (3, 4, 12)] == pytest.approx([2.0, 1.8, 0.2])
    cosine = OptimizerParams(lr=2.0, schedule="cosine")
    assert learning_rate(cosine, 6, 10) == pytest.approx(1 + math.cos(math.pi / 2))
    assert learning_rate(cosine, 11, 10) == 0.0


def test_adamw_is_the_papers() -> None:
    """Two steps by hand (Loshchilov & Hutter 2019, algorithm 2)."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = make_optimizer(OptimizerParams(lr=0.1, weight_decay=0.01), [parameter], None)
    x, m, v = [1.0, -2.0], [0.0, 0.0], [0.0, 0.0]
    for step in (1, 2):
        gradient = [0.5 * step, -1.5]
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        for i, g in enumerate(gradient):
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g * g
            x[i] -= 0.1 * 0.01 * x[i]
            x[i] -= 0.1 * m[i] / (1 - 0.9**step) / (math.sqrt(v[i] / (1 - 0.999**step)) + 1e-8)
    assert parameter.tolist() == pytest.approx(x, abs=1e-6)


@pytest.mark.parametrize("params", [OptimizerParams(name="lion"), OptimizerParams(schedule="step")])
def test_unknown_names_are_refused(params: OptimizerParams) -> None:
    with pytest.raises(FlowError) as caught:
        make_optimizer(params, [torch.nn.Parameter(torch.zeros(1))], None)
    assert caught.value.diagnostics[0].code == "FR0801"
