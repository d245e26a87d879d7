"""The front doors: YAML and Python → FlowSpec. The only place that knows YAML, Jinja2 or pydantic."""
