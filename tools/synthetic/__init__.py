"""Generate the rows of the built-in tasks: ``python -m tools.synthetic --out FILE``.

English tasks in the shapes of GLUE, drawn from a seeded grammar: `lexicon` has the words, `events`
the facts and the ways to tell them, `single` and `pairs` the tasks, `generate` the splits.
"""
