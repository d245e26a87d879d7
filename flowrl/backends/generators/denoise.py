"""The generator `diffusers`: prompts → images, by a denoiser whose steps are sampled with noise.

Takes prompt rows, gives sample rows (LANGUAGE.md: `latents` and `sigmas` stand in for `tokens`). Place t of a row is
the state after t steps; place 0 is the noise that it begins with. `loss_mask` is true on states that a step with noise
has made. What a sample becomes depends on the weights, its prompt and its own normals, never on the rows beside it,
beyond float rounding; the normals of place 0 are the prompt's own where `noise_per: prompt` says so (DanceGRPO).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowrl.algos.denoising import noise_of_steps, step_log_probs, step_mean
from flowrl.backends.batch import Batch, Column, Ragged, concat, sample_ids
from flowrl.backends.contract import STOP, Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.denoisers import Text, check, load_pipeline, tokens_of, velocity
from flowrl.backends.models import torch_dtype
from flowrl.backends.seeds import sample_seed
from flowrl.backends.weights import read_into
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.params import GenerateParams

TEXT_TOKENS = 512
"""Most that the family's text encoder takes."""
TOKENS_AT_ONCE = 16384
STEPS, SIDE_PIXELS, ETA = 28, 1024, 0.0
"""What FLUX.1-dev's card says, where `generate` says nothing; without noise there is nothing to train on."""


@dataclass(frozen=True, slots=True)
class Path:
    """Samples on their way: what each row's places hold."""

    latents: list[Tensor]
    """float32 [rows, channels, height, width], exactly what float16 holds."""
    log_probs: list[Tensor]
    """float32 [rows] of each state."""


class DenoiseGenerator:
    """One rank. Ranks share nothing: each generates its own rows."""

    def __init__(self, setup: RankSetup) -> None:
        if setup.model is None or setup.model_folder is None:
            raise InternalError(f"role `{setup.role.name}` has no model")
        check(setup.model, setup.model_folder)
        self._setup = setup
        self._dtype = torch_dtype(setup.model.dtype)
        self._pipe: Any = load_pipeline(setup.model_folder, self._dtype)
        self._pipe.to(setup.device)
        self._pipe.transformer.eval().requires_grad_(False)
        self._version = 0

    @torch.inference_mode()
    def call(self, call: Call, batch: Batch) -> Result:
        """generate: prompt rows × `samples_per_prompt` → sample rows."""
        torch.set_num_threads(self._setup.threads)
        params = call.op.params
        if call.op.method != "generate" or not isinstance(params, GenerateParams):
            raise InternalError(f"a generator has no op {call.op.method}")
        samples = call.samples_per_prompt
        ids, prompt_ids = sample_ids(batch, samples), np.repeat(batch.prompt_ids, samples)
        text = self._text(call, batch)
        shape, sigmas, noise = self._plan(params)
        size = max(1, TOKENS_AT_ONCE // (tokens_of(shape) + text.states.shape[1]))
        parts: list[dict[str, Column]] = []
        for start in range(0, len(ids), size):
            rows = np.arange(start, min(start + size, len(ids)))
            own = Text(text.states[rows // samples], text.pooled[rows // samples])
            begun = self._begin(call, params, ids[rows].tolist(), prompt_ids[rows].tolist(), shape)
            path = self._walk(begun, own, sigmas, noise, call, ids[rows].tolist())
            parts.append(self._columns(path, own, sigmas, noise))
        return Result(Batch(ids, prompt_ids, _joined(parts)), {})

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        """Nothing runs between calls. The transformer alone is trained; text encoders and decoder stay."""
        read_into(dict(self._pipe.transformer.named_parameters()), manifest, buffer)
        self._version = version

    def load(self) -> None:
        self._pipe.to(self._setup.device)

    def offload(self) -> None:
        self._pipe.to("cpu")

    def close(self) -> None:
        self._pipe = None

    def _text(self, call: Call, batch: Batch) -> Text:
        """Of each prompt, exactly what float16 holds: the trainer reads the same numbers. Raises FlowError FR0805 for a
        prompt that is no text, FR0806 for one that is too long, unless `on_long: truncate` keeps its beginning."""
        most, span = min(call.max_prompt_tokens or TEXT_TOKENS, TEXT_TOKENS), call.op.span
        prompts: list[str] = []
        for prompt, name in zip(batch.objects("prompt"), batch.prompt_ids.tolist(), strict=True):
            if not isinstance(prompt, str):
                found = f"of type `{type(prompt).__name__}`, and a denoiser reads one text"
                raise FlowError(diagnose("FR0805", span, prompt=name, found=found))
            tokens = len(self._pipe.tokenizer_2(prompt)["input_ids"])
            if tokens > most and call.on_long != "truncate":
                facts = {"prompt": name, "tokens": tokens, "max_tokens": most, "over": tokens - most}
                raise FlowError(diagnose("FR0806", span, **facts))
            prompts.append(prompt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            states, pooled, _ = self._pipe.encode_prompt(
                prompt=prompts, prompt_2=None, device=self._setup.device, max_sequence_length=most
            )
        return Text(states.half().to(self._dtype), pooled.half().to(self._dtype))

    def _plan(self, params: GenerateParams) -> tuple[tuple[int, int, int], Tensor, Tensor]:
        """The shape of the latents, and of each state its noise level and the noise of the step behind it."""
        pipe, extra = self._pipe, params.extra
        scale = pipe.vae_scale_factor * 2
        sides = [2 * max(1, int(extra.get(side, SIDE_PIXELS)) // scale) for side in ("height", "width")]
        shape = (pipe.transformer.config.in_channels // 4, sides[0], sides[1])
        steps = int(extra.get("denoise_steps", STEPS))
        given = np.linspace(1.0, 1.0 / steps, steps)
        pipe.scheduler.set_timesteps(sigmas=given, mu=self._shift(tokens_of(shape)), device=self._setup.device)
        sigmas = pipe.scheduler.sigmas.float()
        return shape, sigmas, noise_of_steps(sigmas, float(extra.get("eta", ETA)))

    def _shift(self, tokens: int) -> float | None:
        """How far larger images are sampled at higher noise, as the folder's scheduler says."""
        config = self._pipe.scheduler.config
        if not config.use_dynamic_shifting:
            return None
        low, high = config.base_image_seq_len, config.max_image_seq_len
        slope = (config.max_shift - config.base_shift) / (high - low)
        return float(config.base_shift + slope * (tokens - low))

    def _begin(
        self, call: Call, params: GenerateParams, ids: list[int], prompts: list[int], shape: tuple[int, ...]
    ) -> Tensor:
        whose = prompts if params.extra.get("noise_per") == "prompt" else ids
        return self._normals(call, f"{call.op.id}.noise", whose, shape)

    def _normals(self, call: Call, label: str, ids: list[int], shape: tuple[int, ...]) -> Tensor:
        """float32 [rows, *shape], each row from its own seed."""
        rows = [
            torch.randn(shape, generator=torch.Generator().manual_seed(sample_seed(call.seed, label, each)))
            for each in ids
        ]
        return torch.stack(rows).to(self._setup.device)

    def _walk(self, latents: Tensor, text: Text, sigmas: Tensor, noise: Tensor, call: Call, ids: list[int]) -> Path:
        latents = latents.half().float()
        path = Path([latents], [latents.new_zeros(len(latents))])
        for place in range(1, len(sigmas)):
            before, after, std = (each.expand(len(ids)) for each in (sigmas[place - 1], sigmas[place], noise[place]))
            made = velocity(self._pipe.transformer, latents, before, text)
            mean = step_mean(latents, made, before, after, std)
            if float(noise[place]) > 0:
                normals = self._normals(call, f"{call.op.id}.step{place}", ids, tuple(latents.shape[1:]))
                latents = (mean + noise[place] * normals).half().float()
                path.log_probs.append(step_log_probs(latents, mean, std))
            else:
                latents = mean.half().float()
                path.log_probs.append(latents.new_zeros(len(ids)))
            path.latents.append(latents)
        return path

    def _columns(self, path: Path, text: Text, sigmas: Tensor, noise: Tensor) -> dict[str, Column]:
        rows, places = len(path.latents[0]), len(sigmas)
        lengths = np.full(rows, places, dtype=np.int64)
        latents = torch.stack(path.latents, dim=1).flatten(0, 1).half().cpu().numpy()
        return {
            "latents": Ragged(latents, lengths),
            "sigmas": Ragged(np.tile(sigmas.cpu().numpy(), rows), lengths),
            "step_noise": Ragged(np.tile(noise.cpu().numpy(), rows), lengths),
            "text_states": text.states.half().cpu().numpy(),
            "text_pooled": text.pooled.half().cpu().numpy(),
            "loss_mask": Ragged(np.tile((noise > 0).cpu().numpy(), rows), lengths),
            "rollout_log_probs": Ragged(torch.stack(path.log_probs, dim=1).flatten().cpu().numpy(), lengths),
            "weight_version": Ragged(np.full(rows * places, self._version, dtype=np.int32), lengths),
            "response": tuple(self._images(path.latents[-1])),
            "finish_reason": np.full(rows, STOP, dtype=np.int8),
        }

    def _images(self, latents: Tensor) -> list[Any]:
        """Pillow's, in three colours."""
        from PIL import Image

        vae = self._pipe.vae
        wide = (latents / vae.config.scaling_factor + vae.config.shift_factor).to(self._dtype)
        decoded = vae.decode(wide, return_dict=False)[0].float()
        numbers = ((decoded / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
        return [Image.fromarray(each) for each in numbers.permute(0, 2, 3, 1).cpu().numpy()]


def _joined(parts: Sequence[dict[str, Column]]) -> dict[str, Column]:
    return {name: concat([part[name] for part in parts]) for name in parts[0]} if parts else {}
