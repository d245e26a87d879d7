"""FR0865 to FR0869: images beside prompts, and models that make images."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0865",
        headline="image that cannot be read",
        label="{image}: {reason}",
        help="mend the file or its path, which starts where the data file lies, or leave the row out",
    ),
    Code(
        id="FR0866",
        headline="images and places for them differ",
        label="prompt {prompt} has {images} images and {places} places for them",
        why="an image stands where the text says `<image>` or a message has a part `{{type: image}}`; where nothing "
        "says so, all stand before the first message of the user's",
        help="write `<image>` once for each image of the row, or not at all",
    ),
    Code(
        id="FR0867",
        headline="model that takes no images here",
        label="{folder}: {reason}",
        help="use a model that does, with its processor's files beside it, or take `images` out of the data",
    ),
    Code(
        id="FR0868",
        headline="cut through an image",
        label="prompt {prompt} has {tokens} tokens; its last {max_tokens} begin within or behind an image",
        why="`on_long: truncate` keeps the end of a prompt, and a part of an image's tokens is no image",
        help="raise `max_prompt_tokens`, make the images smaller, or write `on_long: drop`",
    ),
    Code(
        id="FR0869",
        headline="denoiser of an unknown kind",
        label="model `{model}`: {reason}",
        why="a denoiser is a folder as `diffusers` saves a pipeline: transformer, scheduler, text encoders and decoder",
        help="use a pipeline of the class {known}",
    ),
)
