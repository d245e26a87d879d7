"""Stages: what each inherits, where its values were written, and which documents are refused."""

from __future__ import annotations

import pytest

from flowrl.spec import loads
from flowrl.spec.schema import ShapeDocument, TrainerRole
from tests.spec.flows import GRPO, STAGES, changed, codes


def learning_rates(text: str) -> list[float]:
    roles = [stage.roles["actor_train"] for stage in loads(text).stages]
    return [role.optimizer.lr for role in roles if isinstance(role, TrainerRole)]


def test_a_plain_flow_is_one_stage_of_its_name() -> None:
    spec = loads(GRPO)
    assert [stage.name for stage in spec.stages] == ["demo"]
    assert spec.document.stages == ()
    assert spec.stages[0].edges == spec.document.edges


def test_models_data_run_and_cluster_merge_deep() -> None:
    first, second = loads(STAGES + "cluster: 8xH100-80G\n").stages
    assert (first.models["policy"].source, first.models["policy"].dtype) == ("Qwen/Qwen2.5-7B", "float32")
    assert (second.models["policy"].source, second.models["policy"].dtype) == ("stages.first.actor_train", "float32")
    assert [stage.data["train"].max_prompt_tokens for stage in (first, second)] == [64, 128]
    assert second.data["train"].response == "answer"
    assert [(stage.run.steps, stage.run.seed) for stage in (first, second)] == [(10, 7), (20, 7)]
    assert first.cluster == second.cluster == "8xH100-80G"


def test_variables_of_a_stage_win_within_it() -> None:
    assert learning_rates(STAGES) == [1e-3, 5e-4]


def test_flag_on_a_shared_variable() -> None:
    assert loads(STAGES, sets=["vars.lr=0.1"]).stages[0].vars["lr"] == 0.1


def test_the_document_keeps_what_was_written() -> None:
    document = loads(STAGES).document
    assert document.models["policy"].source == "Qwen/Qwen2.5-7B"
    assert document.stages[0].models == {}
    assert document.stages[1].run.model_fields_set == {"steps"}


def test_places_are_where_a_value_was_written() -> None:
    spec = loads(STAGES)
    assert spec.stage_path(0, "models", "policy", "dtype") == ("models", "policy", "dtype")
    assert spec.stage_path(1, "models", "policy", "source") == ("stages", 1, "models", "policy", "source")
    assert spec.stage_path(1, "run", "seed") == ("run", "seed")
    own = spec.span(*spec.stage_path(1, "run", "steps"))
    shared = spec.span(*spec.stage_path(0, "run", "steps"))
    assert own is not None
    assert shared is not None
    assert (shared.line, own.line) == (8, 19)


def test_an_inline_shape_gives_way_to_a_checkpoint() -> None:
    sizes = "hidden_size: 8, layers: 1, heads: 1, ffn_size: 8, max_positions: 8"
    shape = f"{{architecture: qwen2, tokenizer: characters, {sizes}}}"
    first, second = loads(changed(STAGES, ("Qwen/Qwen2.5-7B", shape))).stages
    assert isinstance(first.models["policy"].source, ShapeDocument)
    assert second.models["policy"].source == "stages.first.actor_train"


def test_gates() -> None:
    gate = "    gate: {metric: reward.rewards@val, at_least: 0.6, when: first}\n"
    spec = loads(STAGES.replace("    run: {steps: 20}\n", "    run: {steps: 20}\n" + gate))
    found = spec.stages[1].gate
    assert found is not None
    assert (found.at_least, found.at_most, found.when, found.otherwise) == (0.6, None, "first", "stop")


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("name: second", "name: first", ["FR0125"]),
        ("stages.first.actor_train", "stages.second.actor_train", ["FR0121"]),
        ("stages.first.actor_train", "stages.first", ["FR0121"]),
        ("stages.first.actor_train", "stages.first.advantage", ["FR0121"]),
        ("  - name: second\n    use: sft\n", "  - use: sft\n", ["FR0101"]),
        ("  - name: second\n    use: sft\n", "  - name: second\n", ["FR0101", "FR0101", "FR0101"]),
        ("  - name: first\n", "  - just text\n  - name: first\n", ["FR0102"]),
        ("run: {seed", "schedule: {max_lag: 1}\nrun: {seed", ["FR0123"]),
        ("run: {seed", "use: grpo\nrun: {seed", ["FR0123"]),
        ("run: {seed: 7, steps: 10}", "run: {seed: 7, steps: ten}", ["FR0102"]),
        ("    run: {steps: 20}", "    gate: {metric: a.b}\n    run: {steps: 20}", ["FR0106"]),
        ("    run: {steps: 20}", "    gate: {metric: a.b, at_least: 0, at_most: 1}", ["FR0106"]),
    ],
)
def test_refused(old: str, new: str, wanted: list[str]) -> None:
    """Each fault once, however many stages inherit it."""
    found = codes(changed(STAGES, (old, new)))
    assert set(found) == set(wanted)
    assert len(found) <= len(wanted) + (2 if wanted == ["FR0123"] else 0)


def test_empty_stages_are_a_plain_flow() -> None:
    assert len(loads(GRPO + "stages: []\n").stages) == 1
