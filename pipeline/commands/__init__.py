"""The commands of `headrace`, a module each: what it takes, and what it does with it. `pipeline.cli` only parses."""
