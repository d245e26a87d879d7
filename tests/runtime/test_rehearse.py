"""Rehearsals: a plan for GPUs on this machine's CPU, small in everything and the same in what it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from flowrl.api.compile import compile_spec
from flowrl.api.preflight import preflight
from flowrl.backends.models import materialise
from flowrl.backends.small_models import Small as SmallModel
from flowrl.backends.small_models import make_small
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Model
from flowrl.plan.plan import Plan
from flowrl.program.program import InstructionKind
from flowrl.runtime.launchers.choose import INLINE
from flowrl.runtime.rehearsal import Rehearsal, RehearsalOptions, rehearse
from flowrl.runtime.rehearse import PROMPTS, SAMPLES, VALIDATED, Small, shrink
from flowrl.runtime.session import SessionOptions
from flowrl.spec import load

FLOW = """\
flowrl: 1
name: big
cluster: {gpu: H100-80G, nodes: 2, gpus_per_node: 8}
models:
  policy: {source: Qwen/Qwen2.5-7B-Instruct}
data:
  train: {source: rows.jsonl, prompt: question, keep: [answer], max_prompt_tokens: 1024}
  val: {source: rows.jsonl, prompt: question, keep: [answer], max_prompt_tokens: 1024, order: sequential}
roles:
  actor_train: {model: policy, backend: megatron, optimizer: {name: adamw, lr: 1.0e-6},
                update: {loss: ppo, clip_ratio: 0.2}}
  actor_infer: {model: policy, backend: vllm, engine: {max_sequences: 512},
                generate: {max_response_tokens: 2048}}
  reference: {model: policy, backend: fsdp}
  reward: {function: "rewards.py:score"}
  advantage: {estimator: grpo, kl: {coef: 0.001, form: k1}}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score, reference.log_probs, actor_train.log_probs
  - reward.score, reference.log_probs, actor_train.log_probs -> advantage.estimate
  - {edge: advantage.estimate -> actor_train.update, start_step: 10}
  - actor_train => actor_infer
  - {edge: data.val -> actor_infer.generate@val, every_steps: 20}
  - actor_infer.generate@val -> reward.score@val
step: {prompts: 128, samples_per_prompt: 8, updates: 4}
run: {steps: 200, checkpoint_every_steps: 20}
"""
REWARDS = """
import json, pathlib

def score(response, answer):
    with pathlib.Path(__file__).with_name("seen.jsonl").open("a") as file:
        file.write(json.dumps(answer) + "\\n")
    return [float(len(text) % 2) for text in response]
"""
QUIET = SessionOptions(progress=False, threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flow")
    rows = [{"question": f"What is {n} + {n}? " + "Think. " * 40, "answer": str(2 * n)} for n in range(64)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "flow.yaml").write_text(FLOW)
    return folder


@pytest.fixture(scope="module")
def plan(folder: Path) -> Plan:
    return compile_spec(load(folder / "flow.yaml", ()))


def options(runs: Path, **more: object) -> RehearsalOptions:
    return RehearsalOptions(launcher=INLINE, runs=runs, check=preflight, session=QUIET, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def rehearsal(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    return rehearse(plan, options(tmp_path_factory.mktemp("runs")))


def test_the_program_is_the_plans(plan: Plan) -> None:
    small, _ = shrink(plan, Small())
    for before, after in zip(plan.stages, small.stages, strict=True):
        assert [(i.id, i.pool, i.receives, i.sends) for i in after.programs.instructions] == [
            (i.id, i.pool, i.receives, i.sends) for i in before.programs.instructions
        ]
        assert after.programs.channels == before.programs.channels
        assert [pool.name for pool in after.pools] == [pool.name for pool in before.pools]


def test_minibatches_part_the_small_step(plan: Plan) -> None:
    (stage,) = shrink(plan, Small())[0].stages
    assert (stage.graph.step.prompts, stage.graph.step.samples_per_prompt) == (PROMPTS, SAMPLES)
    updates = [i for i in stage.programs.instructions if i.op == "actor_train.update"]
    rows = [(i.rows.start, PROMPTS if i.rows.stop is None else i.rows.stop) for i in updates]
    assert rows == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_a_transport_of_the_plans_devices_is_not_asked_of_this_machine(tmp_path: Path) -> None:
    edge = "  - {edge: actor_train => actor_infer, transport: disk}"
    (tmp_path / "flow.yaml").write_text(FLOW.replace("  - actor_train => actor_infer", edge))
    (tmp_path / "rewards.py").write_text(REWARDS)
    made, changes = shrink(compile_spec(load(tmp_path / "flow.yaml")), Small())
    preflight(made)
    assert [change.was for change in changes if change.of.startswith("transport")] == ["disk"]


def test_a_filter_that_keeps_a_share_of_each_group_keeps_one(tmp_path: Path) -> None:
    """The best of eight, as RAFT has it, needs eight."""
    text = (
        "flowrl: 1\nname: best\nuse: raft\ncluster: 8xH100-80G\nmodels: {policy: {source: Qwen/Qwen2.5-7B-Instruct}}\n"
        "data: {train: {source: rows.jsonl, prompt: question, keep: [answer], max_prompt_tokens: 64}}\n"
        'roles: {reward: {function: "rewards.py:score"}}\n'
    )
    (tmp_path / "flow.yaml").write_text(text)
    (tmp_path / "rewards.py").write_text(REWARDS)
    made, _ = shrink(compile_spec(load(tmp_path / "flow.yaml")), Small())
    assert made.stages[0].graph.step.samples_per_prompt == 8


@pytest.mark.parametrize(
    ("prompts", "updates", "wanted"), [(128, 64, 64), (6, 3, 6), (96, 6, 12), (3, 1, 3), (64, 1, 8), (1024, 8, 8)]
)
def test_every_minibatch_keeps_a_prompt(plan: Plan, prompts: int, updates: int, wanted: int) -> None:
    (stage,) = plan.stages
    step = structs.replace(stage.graph.step, prompts=prompts, updates=updates)
    stage = structs.replace(stage, graph=structs.replace(stage.graph, step=step))
    assert shrink(structs.replace(plan, stages=(stage,)), Small())[0].stages[0].graph.step.prompts == wanted


def test_layouts_are_what_the_ranks_allow(plan: Plan) -> None:
    for ranks in (1, 2, 3):
        (stage,) = shrink(plan, Small(ranks=ranks))[0].stages
        devices = [device for pool in stage.pools for device in pool.devices]
        assert len(devices) == len(set(devices))
        for pool in (pool for pool in stage.pools if pool.devices):
            assert len(pool.devices) <= ranks
            assert all(entry.layout.devices == len(pool.devices) for entry in pool.roles)


def test_tensor_parallel_engines_stay_so_where_ranks_allow(plan: Plan) -> None:
    (stage,) = plan.stages
    name, four = "actor_infer", 4

    def with_tp(tp: int) -> Plan:
        pools = tuple(
            structs.replace(
                pool,
                roles=tuple(
                    structs.replace(e, layout=structs.replace(e.layout, dp=len(pool.devices) // tp, tp=tp))
                    if e.role == name
                    else e
                    for e in pool.roles
                ),
            )
            for pool in stage.pools
        )
        return structs.replace(plan, stages=(structs.replace(stage, pools=pools),))

    def layout(tp: int, engine: str) -> tuple[int, int]:
        (small,) = shrink(with_tp(tp), Small(ranks=four, engine=engine))[0].stages
        (found,) = (e.layout for pool in small.pools for e in pool.roles if e.role == name)
        return found.dp * found.tp, found.tp

    assert layout(2, "vllm")[1] == 2
    assert layout(2, "hf")[1] == 1


def test_what_is_changed_is_said(rehearsal: Rehearsal) -> None:
    told = {change.of: (change.kind, change.was, change.now) for change in rehearsal.changes}
    assert told["roles.actor_train.backend"] == ("replaced", "megatron", "fsdp")
    assert told["roles.actor_infer.backend"] == ("replaced", "vllm", "hf")
    assert told["roles.actor_infer.engine.max_sequences"] == ("replaced", "512", "its default")
    assert told["step.prompts"] == ("shrunk", "128", "8")
    assert told["run.steps"] == ("shrunk", "200", "2")
    assert told["cluster"] == ("replaced", "16 × H100-80G", told["cluster"][2])
    assert told["models.policy"] == (
        "shrunk",
        "qwen2, 28 layers × 3,584, 28 heads (4 of keys), bfloat16",
        "qwen2, 2 layers × 64, 2 heads (1 of keys), float32, tokenizer bytes",
    )
    assert told["first step of `run actor_train.update 1/4`"] == ("shrunk", "11", "2")


def test_every_instruction_runs(rehearsal: Rehearsal, plan: Plan) -> None:
    ran = {ran.instruction: ran.steps for ran in rehearsal.ran}
    assert list(ran) == [i.id for stage in plan.stages for i in stage.programs.instructions]
    assert not [name for name, steps in ran.items() if not steps]
    assert ran["run actor_infer.generate"] == (1, 2)
    assert ran["run actor_train.update 4/4"] == (2,)
    saves = [i.id for i in plan.stages[0].programs.instructions if i.kind is InstructionKind.SAVE]
    assert {ran[save] for save in saves} == {(2,)}


def test_the_reward_function_is_called_with_rows_of_the_data(rehearsal: Rehearsal, folder: Path) -> None:
    seen = [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]
    assert {len(answers) for answers in seen} == {PROMPTS * SAMPLES, VALIDATED}  # one sample a prompt of validation
    assert {answer for answers in seen for answer in answers} <= {str(2 * n) for n in range(64)}


def test_with_several_stages_each_is_named(plan: Plan) -> None:
    (stage,) = plan.stages
    several = structs.replace(plan, stages=(stage, structs.replace(stage, name="later")))
    told = [change.of for change in shrink(several, Small())[1] if change.of.endswith("step.prompts")]
    assert told == ["big: step.prompts", "later: step.prompts"]


def test_what_fails_is_told_at_the_flows_place(plan: Plan, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text((folder / "rows.jsonl").read_text())
    (tmp_path / "rewards.py").write_text("def score(response, answer):\n    raise KeyError('gold')\n")
    with pytest.raises(FlowError) as caught:
        rehearse(plan, options(tmp_path / "runs", folder=tmp_path))
    (fault,) = caught.value.diagnostics
    assert fault.code == "FR0822"
    assert fault.exit_code == 5
    assert fault.labels[0].span.line == FLOW.splitlines().index('  reward: {function: "rewards.py:score"}') + 1


def test_what_run_cannot_do_is_refused(plan: Plan, tmp_path: Path) -> None:
    (stage,) = plan.stages
    denoiser = {"head": "denoiser", "lora": {"rank": 4, "alpha": 8}}
    models = tuple(structs.replace(model, **denoiser) for model in stage.graph.models)
    stage = structs.replace(stage, graph=structs.replace(stage.graph, models=models))
    with pytest.raises(FlowError) as caught:
        rehearse(structs.replace(plan, stages=(stage,)), options(tmp_path))
    assert {fault.code for fault in caught.value.diagnostics} == {"FR0801"}
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_here_keeps_tokenizer_and_architecture(tmp_path: Path) -> None:
    inline = {"architecture": "qwen2", "tokenizer": "characters", "hidden_size": 96, "layers": 5, "heads": 6}
    inline |= {"kv_heads": 2, "ffn_size": 128, "max_positions": 512}
    materialise(Model(name="policy", source="inline", inline=inline), tmp_path, tmp_path / "real", 0)
    small = SmallModel(layers=2, hidden=64, heads=2, kv_heads=1, ffn=128, positions=160)
    made = make_small(Model(name="policy", source="real"), tmp_path, small, tmp_path / "small", 0)
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    assert (made.architecture, made.tokenizer) == ("qwen2", "real")
    assert (config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"]) == (2, 64, 2)
    before, after = Codec(tmp_path / "real"), Codec(tmp_path / "small")
    assert after.vocab_size == before.vocab_size
    (ids,) = after.encode_texts(["1 + 1 = 2"])
    assert after.decode(ids) == "1 + 1 = 2"
    assert len(after.encode_prompts([[{"role": "user", "content": "hi"}]])[0]) > 2
