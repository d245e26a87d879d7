"""FR04 models and layouts."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0401",
        headline="model folder is not there",
        label="`{source}` leads to {place}, which does not exist",
        why="a source that begins with `.`, `/` or `~`, or is no `owner/name`, is a folder with a config.json",
        help="write the folder's path relative to the flow's file, or a hub id such as Qwen/Qwen2.5-0.5B-Instruct",
    ),
    Code(
        id="FR0402",
        headline="no card for this model",
        label="`{source}` is in no card of the catalogue, and {place} is no folder",
        why="memory and time are made from the model's shape, and planning opens no network",
        help="put the model's config.json into a folder and write that folder as `source`",
    ),
    Code(
        id="FR0403",
        headline="model configuration cannot be read",
        label="{path}: {fault}",
        help="use the config.json that transformers wrote beside the weights",
    ),
    Code(
        id="FR0404",
        headline="unknown model architecture",
        label="`{found}` in {where}; known are {known}",
        why="the number of parameters and the memory of a layer depend on the architecture",
        help="use a model of one of these architectures",
    ),
    Code(
        id="FR0405",
        headline="head does not match the model",
        label="`{model}` is asked for a head `{head}`",
        why="{fault}",
        help="write `head: scalar` for a model that scores, `head: lm` for one that writes",
    ),
    Code(
        id="FR0406",
        headline="no such stage role",
        label="`{source}` names no role of an earlier stage",
        why="a stage starts from the checkpoint of a trainer in a stage above it; there are {known}",
        help="write `stages.STAGE.ROLE` with a trainer of an earlier stage",
    ),
    Code(
        id="FR0407",
        headline="inline shape does not work out",
        label="`{model}` cannot be made from this shape",
        why="{fault}",
        help="choose sizes that divide",
    ),
    Code(
        id="FR0410",
        headline="the backend has no such axis",
        label="`{axis}: {size}` for `{role}`, whose backend is `{backend}`",
        why="`{backend}` cuts a model along {axes} only",
        help="remove `{axis}` from the layout of `{role}`",
    ),
    Code(
        id="FR0411",
        headline="the layout does not cut the model",
        label="layout of `{role}`",
        why="{fault}",
        help="sizes of {axis} that cut this model: {legal}",
    ),
    Code(
        id="FR0412",
        headline="unknown backend",
        label="`{backend}` of `{role}`; known are {known}",
        help="use one of the known backends",
    ),
    Code(
        id="FR0413",
        headline="the backend does not run this kind of role",
        label="`{role}` is a {kind}, and its backend is `{backend}`",
        why="`{backend}` runs {kinds}",
        help="backends for a {kind}: {able}",
    ),
    Code(
        id="FR0414",
        headline="the backend does not compute in this dtype",
        label="`{model}` is {dtype}, and `{role}` runs it on `{backend}`",
        why="`{backend}` computes in {dtypes}",
        help="write `dtype: {first}` on the model",
    ),
    Code(
        id="FR0415",
        headline="a role with a model needs a backend",
        label="`{role}` runs the model `{model}`, and no `backend` says on what",
        why="the memory, the legal layouts and the program all depend on the backend",
        help="write `backend:` on `{role}`; backends for a {kind}: {able}",
    ),
    Code(
        id="FR0416",
        headline="the backend does not run this head",
        label="`{role}` runs the model `{model}` of head {head} on `{backend}`",
        why="`{backend}` runs models of head {heads}",
    ),
    Code(
        id="FR0417",
        headline="no such matrix to adapt",
        label="`{name}` is in no layer of {model}",
        why="LoRA puts its adapters beside matrices that the model has; one that it has not would train nothing",
        help="targets of this model: {known}; `all_linear` is all of them",
    ),
)
