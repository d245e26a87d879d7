"""Human preference score of an image (HPSv2, Wu et al. 2023). Needs `pip install hpsv2` where the flow runs."""

from typing import Any


def score(prompt: list[str], response: list[Any]) -> list[float]:
    """How well each image (`response`) pleases as a picture of its prompt."""
    import hpsv2

    return [
        float(hpsv2.score(image, text, hps_version="v2.1")[0]) for image, text in zip(response, prompt, strict=True)
    ]
