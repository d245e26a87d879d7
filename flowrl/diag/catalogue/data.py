"""FR0875 to FR0879: data sets of other kinds than jsonl, and prompt templates."""

from flowrl.diag.catalogue.code import Code

CODES: tuple[Code, ...] = (
    Code(
        id="FR0875",
        headline="reader of parquet files not installed",
        label="data `{data}` reads `{file}`, and pyarrow is not installed here",
        help="pip install 'flowrl-compiler[data]', or write the rows to a jsonl file",
    ),
    Code(
        id="FR0876",
        headline="data set without such a split",
        label="`{source}` has no split `{split}`",
        why="its splits are {known}",
        help="name one: `args: {{split: …}}`, and its configuration, if it has several: `args: {{split: …, name: …}}`",
    ),
    Code(
        id="FR0877",
        headline="data file that cannot be read",
        label="data `{data}`: {file}: {reason}",
        help="write the file again, as parquet or as jsonl",
    ),
    Code(
        id="FR0878",
        headline="every prompt is too long",
        label="data `{data}`: each of its {rows} prompts has more than `max_prompt_tokens: {max_tokens}` tokens",
        help="raise `max_prompt_tokens`, or write `on_long: truncate`",
    ),
    Code(
        id="FR0879",
        headline="prompt template cannot be filled",
        label="`{template}`: {reason}",
        why="a template is a Jinja2 file over `prompt` and the columns of the row",
        help="mend the template, or give the data the column that it names",
    ),
)
