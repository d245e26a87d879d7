"""The generator on a real vLLM engine, in process: token ids in, token ids and log-probs out.

Takes prompts; gives samples with the same columns as every generator (LANGUAGE.md). One object is one rank: one engine,
or one tensor-parallel part of one. Seeds belong to samples, so neither batches nor ranks move the dice. Weights are
replaced in place between generations. Must not know where prompts come from or who trains.

An engine patches torch for its whole process (threads, memory policy, CUDA stand-ins on a CPU): no trainer should share
it. Written for vLLM 0.32; the GPU paths (sleep levels, no eager mode) have not been run on a GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Ragged, sample_ids
from flowrl.backends.contract import LENGTH, STOP, Bytes, Call, Gather, RankSetup, Result, TensorSpec
from flowrl.backends.generators.rollouts import Rollout, Rollouts, columns_of, metrics_of
from flowrl.backends.generators.vllm_episodes import Speaks
from flowrl.backends.generators.vllm_requests import Live, Sample
from flowrl.backends.generators.vllm_settings import engine_arguments, is_cpu
from flowrl.backends.generators.vllm_start import last_line, name_ranks, start_engine, stop_engine
from flowrl.backends.generators.vllm_worker import adapter_request
from flowrl.backends.seeds import sample_seed
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.params import GenerateParams


class VllmGenerator(Speaks):
    """See the module. Raises FlowError FR0840 to FR0852 for what a flow or an installation has wrong."""

    def __init__(self, setup: RankSetup) -> None:
        arguments = engine_arguments(setup)
        assert setup.model_folder is not None
        self._setup = setup
        self._version = 0
        self._away: frozenset[str] = frozenset()
        self._broken: str | None = None
        self._live: Live | None = None
        self._partial: Rollouts | None = None
        self._turns: dict[str, Sample] = {}
        self._stop: tuple[str, ...] = ()
        self._paused = False
        self._context: int = arguments["max_model_len"]
        self._codec = Codec(setup.model_folder, setup.model and setup.model.span)
        self._store = name_ranks(setup) if setup.layout.tp > 1 else None
        self._engine: Any = start_engine(setup, arguments)
        self._lora = None if setup.model is None else setup.model.lora
        if self._lora is not None:
            self._engine.collective_rpc("flowrl_start_adapter", args=(int(self._lora["rank"]),))

    def call(self, call: Call, batch: Batch) -> Result:
        """generate: prompt rows → samples. Ranks of one engine beyond its first give no rows."""
        self.open(call, batch)
        return self.take(1, 1, by_prompt=False)

    def open(self, call: Call, batch: Batch) -> None:
        """Hand the engine all requests of a call. As Streaming: it works on them while parts are waited for."""
        params = self._params(call)
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

    def join(self, call: Call, batch: Batch, *, afresh: bool) -> None:
        """As Carrying: requests of which some may still be with the engine when its weights change."""
        params = self._params(call)
        self._require_ready()
        samples = self._requests(call, params, batch)
        with self._breaking("generation"):
            if afresh or self._partial is None:
                self._abort([] if self._partial is None else self._partial.going())
                self._partial, self._stop, self._paused = Rollouts(), tuple(params.stop), False
            self._begin(samples, call, params, goes_on=True)
        self._partial.join([Rollout(s.id, s.prompt, self._limit(params, len(s.prompt))) for s in samples])

    def gather(self, gather: Gather) -> Result:
        """As Carrying."""
        partial = self._partial
        if partial is None or self._paused:
            raise InternalError("no session is open" if partial is None else "the session is paused")
        left, dropped, gone = partial.drop(gather)
        with self._breaking("generation"):
            self._abort(gone)
            going = {str(each.id): each for each in partial.going()}
            while going and not partial.has(left):
                self._go_on(going)
        taken = partial.take(left)
        if self._setup.rank % self._setup.layout.tp:
            return Result(None, {})
        return Result(columns_of(taken, self._codec), metrics_of(taken), dropped)

    def pause(self) -> None:
        """As Carrying. The engine works in this process, so it stands still as soon as nobody asks for rows."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        """As WeightTarget. Raises FlowError FR0850 or FR0851; the engine is unusable after either."""
        self._require_whole()
        if self._partial is not None and self._partial.going() and not self._paused:
            raise InternalError("weights came in while a session was at work")
        name, rank, span = self._setup.role.name, self._setup.rank, self._setup.role.span
        self.wake_weights()
        try:
            missing = self._take_in(manifest, buffer)
        except Exception as error:
            self._broken = f"the update to version {version}"
            reason = last_line(error)
            raise FlowError(diagnose("FR0850", span, role=name, rank=rank, version=version, reason=reason)) from error
        if missing:
            self._broken = f"the update to version {version}"
            raise FlowError(diagnose("FR0851", span, role=name, version=version, missing=", ".join(missing[:5])))
        self._reset_prefix_cache()
        self._version = version
        self._engine.set_weight_version(str(version))

    def _take_in(self, manifest: Sequence[TensorSpec], buffer: Bytes) -> tuple[str, ...]:
        """Names that the buffer and the engine do not have in common. A model with adapters gets these alone."""
        if self._lora is None:
            return self._engine.collective_rpc("flowrl_read_weights", args=(manifest, buffer))[0]
        told = (manifest, buffer, int(self._lora["rank"]), float(self._lora["alpha"]))
        return self._engine.collective_rpc("flowrl_read_adapter", args=told)[0]

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
        if self._engine is not None:
            stop_engine(self._engine)
            self._engine = None
            gc.collect()

    def _params(self, call: Call) -> GenerateParams:
        params = call.op.params
        if call.op.method != "generate" or not isinstance(params, GenerateParams):
            raise InternalError(f"a generator was asked to {call.op.method}")
        return params

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

    def _begin(self, samples: Sequence[Sample], call: Call, params: GenerateParams, *, goes_on: bool = False) -> None:
        for sample in samples:
            seed = sample_seed(call.seed, call.op.id, sample.id)
            limit = self._limit(params, len(sample.prompt))
            self._request(str(sample.id), sample, params, seed, limit, goes_on=goes_on)
        self._prepare(params)

    def _request(
        self, name: str, sample: Sample, params: GenerateParams, seed: int, limit: int, *, goes_on: bool = False
    ) -> None:
        sampling = self._sampling(params, seed, limit, goes_on=goes_on)
        adapter = None if self._lora is None else adapter_request()
        self._engine.add_request(name, {"prompt_token_ids": sample.prompt}, sampling, lora_request=adapter)

    def _prepare(self, params: GenerateParams) -> None:
        self._engine.collective_rpc("flowrl_log_probs_of", args=(_whole_vocabulary(params),))

    def _step(self, live: Live) -> None:
        for name in self._finished(live.stop, live.waiting):
            live.done.append(live.waiting.pop(name))

    def _finished(self, stop: Sequence[str], waiting: Mapping[str, Sample]) -> list[str]:
        """One step of the engine: the requests that it has finished, each of which has what came of it."""
        names: list[str] = []
        for output in self._engine.step():
            stopped = self._holds_stop(output.outputs[0].token_ids, stop)
            if stopped and not output.finished:
                self._engine.abort_request([output.request_id], internal=False)
            if stopped or output.finished:
                waiting[output.request_id].take(output.outputs[0], stopped)
                names.append(output.request_id)
        return names

    def _go_on(self, going: dict[str, Rollout]) -> None:
        """One step of a session that goes on: outputs hold the tokens that are new, made with the version of now."""
        assert self._partial is not None
        for output in self._engine.step():
            rollout, made = going[output.request_id], output.outputs[0]
            tokens = list(made.token_ids)
            rollout.response += tokens
            rollout.log_probs += [entry[token].logprob for token, entry in zip(tokens, made.logprobs, strict=True)]
            rollout.versions += [self._version] * len(tokens)
            stopped = self._holds_stop(rollout.response, self._stop)
            if stopped and not output.finished:
                self._abort([rollout])
            if stopped or output.finished:
                del going[output.request_id]
                self._partial.finish(rollout, LENGTH if made.finish_reason == "length" and not stopped else STOP)

    def _abort(self, rollouts: Sequence[Rollout]) -> None:
        names = [str(each.id) for each in rollouts if each.finish_reason is None]
        if names:
            self._engine.abort_request(names, internal=False)

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

    def _sampling(self, params: GenerateParams, seed: int, limit: int, *, goes_on: bool) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        whole = RequestOutputKind.CUMULATIVE if params.stop else RequestOutputKind.FINAL_ONLY
        return SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=seed,
            max_tokens=limit,
            stop_token_ids=[self._codec.eos_id],
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if goes_on else whole,
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
        """Old keys and values must not meet new weights: those of requests under way are made anew, too."""
        running = self._partial is not None and bool(self._partial.going())
        if not self._engine.reset_prefix_cache(reset_running_requests=running):
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


def _whole_vocabulary(params: GenerateParams) -> float | None:
    """The temperature of the log-probs if top_k or top_p cut the distribution, else None.

    Log-probs are of softmax(logits / temperature) over the whole vocabulary, as a trainer computes them. vLLM's own
    after temperature (`processed_logprobs`) are that unless something was cut: then they are of what is left.
    """
    cut = params.top_p < 1.0 or params.top_k > 0
    return params.temperature if cut and params.temperature > 0 else None
