"""The page of a plan for a browser: a template, its style, and a script built from web/."""
