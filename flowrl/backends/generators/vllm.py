"""The generator on a real vLLM engine, in process: token ids in, token ids and log-probs out.

Takes prompts; gives samples with the same columns as every generator (LANGUAGE.md). One object is one rank: one engine,
or one tensor-parallel part of one. Seeds belong to samples, so neither batches nor ranks move the dice. Weights are
replaced in place between generations. Must not know where prompts come from or who trains.

An engine patches torch for its whole process (threads, memory policy, CUDA stand-ins on a CPU): no trainer should share
it. Written for vLLM 0.32; the GPU paths (sleep levels, no eager mode) have not been run on a GPU.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Ragged
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.generators.hf import sample_ids
from flowrl.backends.generators.vllm_requests import Live, Sample, metrics_of
from flowrl.backends.generators.vllm_settings import engine_arguments, engine_place, environment, is_cpu
from flowrl.backends.seeds import sample_seed
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.diag.near import near_names
from flowrl.graph.params import GenerateParams


class VllmGenerator:
    """See the module. Raises FlowError FR0840 to FR0852 for what a flow or an installation has wrong."""

    def __init__(self, setup: RankSetup) -> None:
        arguments = engine_arguments(setup)
        assert setup.model_folder is not None
        self._setup = setup
        self._version = 0
        self._away: frozenset[str] = frozenset()
        self._broken: str | None = None
        self._live: Live | None = None
        self._context: int = arguments["max_model_len"]
        self._codec = Codec(setup.model_folder, setup.model and setup.model.span)
        self._store = _name_ranks(setup) if setup.layout.tp > 1 else None
        self._engine: Any = _start_engine(setup, arguments)

    def call(self, call: Call, batch: Batch) -> Result:
        """generate: prompt rows → samples. Ranks of one engine beyond its first give no rows."""
        self.open(call, batch)
        return self.take(1, 1, by_prompt=False)

    def open(self, call: Call, batch: Batch) -> None:
        """Hand the engine all requests of a call. As Streaming: it works on them while parts are waited for."""
        params = call.op.params
        if call.op.method != "generate" or not isinstance(params, GenerateParams):
            raise InternalError(f"a generator was asked to {call.op.method}")
        self._require_ready()
        if self._live is not None:
            raise InternalError("a session is open")
        samples = self._requests(call, params, batch)
        with self._breaking("generation"):
            self._begin(samples, call, params)
        self._live = Live(samples, params.stop, {str(sample.id): sample for sample in samples})

    def take(self, number: int, parts: int, *, by_prompt: bool) -> Result:
        live = self._live
        if live is None:
            raise InternalError("no session is open")
        with self._breaking("generation"):
            while live.waiting and not live.has(number, parts, by_prompt):
                self._step(live)
        samples = live.take(number, parts, by_prompt)
        if number == parts:
            self._live = None
        if self._setup.rank % self._setup.layout.tp:
            return Result(None, {})
        return Result(self._columns(samples), metrics_of(samples))

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        """As WeightTarget. Raises FlowError FR0850 or FR0851; the engine is unusable after either."""
        self._require_whole()
        name, rank, span = self._setup.role.name, self._setup.rank, self._setup.role.span
        self.wake_weights()
        try:
            missing = self._engine.collective_rpc("flowrl_read_weights", args=(manifest, buffer))[0]
        except Exception as error:
            self._broken = f"the update to version {version}"
            reason = _last_line(error)
            raise FlowError(diagnose("FR0850", span, role=name, rank=rank, version=version, reason=reason)) from error
        if missing:
            self._broken = f"the update to version {version}"
            raise FlowError(diagnose("FR0851", span, role=name, version=version, missing=", ".join(missing[:5])))
        self._reset_prefix_cache()
        self._version = version
        self._engine.set_weight_version(str(version))

    def offload(self) -> None:
        """CPU: free the KV cache, keep the weights (vLLM's sleep does nothing there). GPU: vLLM's sleep, level 1: the
        weights go to host memory, the cache is dropped."""
        self._require_whole()
        if self._away:
            return
        self._reset_prefix_cache()
        if is_cpu(self._setup.device):
            self._engine.collective_rpc("flowrl_free_cache")
        else:
            self._engine.sleep(level=1)
        self._away = frozenset({"weights", "kv_cache"})

    def load(self) -> None:
        """Undo `offload`."""
        self.wake_weights()
        self.wake_cache()

    def wake_weights(self) -> None:
        """The first half of `load`: new weights can be read, nothing can be generated. On a CPU they never left."""
        self._require_whole()
        if "weights" in self._away and not is_cpu(self._setup.device):
            self._engine.wake_up(tags=["weights"])
        self._away -= {"weights"}

    def wake_cache(self) -> None:
        """The second half of `load`."""
        self._require_whole()
        if "kv_cache" not in self._away:
            return
        if is_cpu(self._setup.device):
            self._engine.collective_rpc("flowrl_make_cache")
        else:
            self._engine.wake_up(tags=["kv_cache"])
        self._away -= {"kv_cache"}

    def close(self) -> None:
        """Stop the engine and free its memory. May be called twice."""
        if self._engine is None:
            return
        engine, self._engine = self._engine, None
        engine.engine_core.shutdown()
        del engine
        _forget_process_groups()
        gc.collect()

    def _requests(self, call: Call, params: GenerateParams, batch: Batch) -> list[Sample]:
        prompts = self._codec.encode_prompts(
            batch.objects("prompt"),
            batch.prompt_ids,
            max_tokens=call.max_prompt_tokens,
            on_long=call.on_long,
            span=call.op.span,
        )
        for prompt, prompt_id in zip(prompts, batch.prompt_ids.tolist(), strict=True):
            if self._limit(params, len(prompt)) < 1:
                facts = {"prompt": prompt_id, "tokens": len(prompt), "context": self._context_of(params)}
                span = call.op.spans.get("max_context_tokens", call.op.span)
                raise FlowError(diagnose("FR0849", span, role=self._setup.role.name, **facts))
        ids = sample_ids(batch, call.samples_per_prompt).tolist()
        return [Sample(one, prompts[row // call.samples_per_prompt].tolist()) for row, one in enumerate(ids)]

    def _begin(self, samples: Sequence[Sample], call: Call, params: GenerateParams) -> None:
        for sample in samples:
            seed = sample_seed(call.seed, call.op.id, sample.id)
            prompt = {"prompt_token_ids": sample.prompt}
            self._engine.add_request(str(sample.id), prompt, self._sampling(params, seed, len(sample.prompt)))
        self._engine.collective_rpc("flowrl_log_probs_of", args=(_whole_vocabulary(params),))

    def _step(self, live: Live) -> None:
        for output in self._engine.step():
            stopped = self._holds_stop(output.outputs[0].token_ids, live.stop)
            if stopped and not output.finished:
                self._engine.abort_request([output.request_id], internal=False)
            if stopped or output.finished:
                sample = live.waiting.pop(output.request_id)
                sample.take(output.outputs[0], stopped)
                live.done.append(sample)

    def _holds_stop(self, tokens: Sequence[int], stop: Sequence[str]) -> bool:
        """Whether the newest token has completed a stop string: it lies in so many tokens, each a byte at least."""
        if not stop:
            return False
        window = max(len(text.encode()) for text in stop)
        text = self._codec.decode(np.asarray(tokens[-window:], dtype=np.int32))
        return any(one in text for one in stop)

    def _context_of(self, params: GenerateParams) -> int:
        return min(self._context, params.max_context_tokens or self._context)

    def _limit(self, params: GenerateParams, prompt_tokens: int) -> int:
        """Most tokens of a response to a prompt of so many tokens."""
        room = self._context_of(params) - prompt_tokens
        return min(room, params.max_response_tokens, params.max_turn_tokens or params.max_response_tokens)

    def _sampling(self, params: GenerateParams, seed: int, prompt_tokens: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=seed,
            max_tokens=self._limit(params, prompt_tokens),
            stop_token_ids=[self._codec.eos_id],
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE if params.stop else RequestOutputKind.FINAL_ONLY,
        )

    def _columns(self, samples: Sequence[Sample]) -> Batch:
        ids = np.asarray([s.id for s in samples], dtype=np.int64)
        lengths = np.asarray([len(s.prompt) + len(s.response) for s in samples], dtype=np.int64)
        mask = [np.arange(len(s.prompt) + len(s.response)) >= len(s.prompt) for s in samples]
        texts = self._codec.decode_all([np.asarray(s.response, dtype=np.int32) for s in samples])
        columns = {
            "tokens": Ragged.of([np.asarray(s.prompt + s.response) for s in samples], np.int32),
            "loss_mask": Ragged.of(mask, np.bool_),
            "rollout_log_probs": Ragged.of(
                [np.asarray([0.0] * len(s.prompt) + s.log_probs) for s in samples], np.float32
            ),
            "weight_version": Ragged(np.full(int(lengths.sum()), self._version, dtype=np.int32), lengths),
            "response": tuple(texts),
            "finish_reason": np.asarray([s.finish_reason for s in samples], dtype=np.int8),
        }
        return Batch(ids, ids >> SAMPLE_ID_BITS, columns)

    def _reset_prefix_cache(self) -> None:
        """Old keys and values must not meet new weights."""
        if not self._engine.reset_prefix_cache():
            self._broken = "a prefix cache that could not be reset"
            raise InternalError("vLLM did not reset its prefix cache: some request still holds blocks")

    @contextmanager
    def _breaking(self, what: str) -> Iterator[None]:
        """An exception inside leaves half-done requests in the engine: it is not used again."""
        try:
            yield
        except BaseException:
            self._broken = f"a {what} that failed"
            raise

    def _require_whole(self) -> None:
        if self._engine is None:
            raise InternalError("the engine is closed")
        if self._broken is not None:
            raise InternalError(f"the engine cannot be used after {self._broken}")

    def _require_ready(self) -> None:
        self._require_whole()
        if self._away:
            raise InternalError("the engine is off its devices")


def _start_engine(setup: RankSetup, arguments: dict[str, Any]) -> Any:
    """The engine, or FlowError FR0846 to FR0848."""
    os.environ.update(environment(setup.device, setup.threads))
    if is_cpu(setup.device):
        torch.set_num_threads(setup.threads)
        _switch_off_compiler()
    name, span = setup.role.name, setup.role.spans.get("backend", setup.role.span)
    with _quiet_start():
        try:
            import vllm
            from vllm import EngineArgs, LLMEngine
        except ImportError as error:
            raise FlowError(diagnose("FR0847", span, role=name, reason=_last_line(error))) from error
        _check_keys(setup, {one.name for one in fields(EngineArgs)}, vllm.__version__)
        try:
            return LLMEngine.from_engine_args(EngineArgs(**arguments), enable_multiprocessing=False)
        except Exception as error:
            notes = [line for line in str(error).splitlines() if line.strip()][:8]
            facts = {"role": name, "rank": setup.rank, "reason": f"{type(error).__name__}"}
            raise FlowError(diagnose("FR0848", span, notes=notes, **facts)) from error


@contextmanager
def _quiet_start() -> Iterator[None]:
    """vLLM looks at every attribute of every loaded module, a deprecated one of torch among them, and on a CPU replaces
    `torch.set_num_threads` by a function that does nothing."""
    set_num_threads = torch.set_num_threads
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`torch\.distributed\.reduce_op`", category=FutureWarning)
            yield
    finally:
        torch.set_num_threads = set_num_threads


def _switch_off_compiler() -> None:
    """The environment variable counts only if torch's compiler was not loaded before."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.config.disable = True


def _check_keys(setup: RankSetup, known: set[str], version: str) -> None:
    unknown = sorted(set(setup.role.engine.extra) - known)
    if not unknown:
        return
    near = {key: near_names(key, known) for key in unknown}
    raise FlowError(
        diagnose(
            "FR0846",
            engine_place(setup, key),
            role=setup.role.name,
            key=key,
            version=version,
            near=_near_text(near[key]),
        )
        for key in unknown
    )


def _near_text(names: Sequence[str]) -> str:
    return f"keys with near names exist: {', '.join(names)}" if names else "no key has a near name"


def _name_ranks(setup: RankSetup) -> Any:
    """Tell vLLM which ranks make one engine. Ranks are numbered replica by replica; each replica has a store of its
    own, whose port its first rank picks and the role's store passes on. Gives that store: rank 0 serves it while it is
    kept."""
    from torch.distributed import TCPStore

    if setup.store_port is None:
        raise InternalError("ranks of one engine need a store")
    replica, part = divmod(setup.rank, setup.layout.tp)
    store = TCPStore(setup.store_host, setup.store_port, setup.world_size, setup.rank == 0, wait_for_workers=False)
    if part == 0:
        store.set(f"vllm/{replica}", f"{setup.store_host}:{_free_port(setup.store_host)}")
    host, port = store.get(f"vllm/{replica}").decode().rsplit(":", 1)
    os.environ.update(
        RANK=str(part), LOCAL_RANK="0", WORLD_SIZE=str(setup.layout.tp), MASTER_ADDR=host, MASTER_PORT=port
    )
    return store


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _forget_process_groups() -> None:
    from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

    destroy_model_parallel()
    destroy_distributed_environment()


def _whole_vocabulary(params: GenerateParams) -> float | None:
    """The temperature of the log-probs if top_k or top_p cut the distribution, else None.

    Log-probs are of softmax(logits / temperature) over the whole vocabulary, as a trainer computes them. vLLM's own
    after temperature (`processed_logprobs`) are that unless something was cut: then they are of what is left.
    """
    cut = params.top_p < 1.0 or params.top_k > 0
    return params.temperature if cut and params.temperature > 0 else None


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip()}" if lines else type(error).__name__
