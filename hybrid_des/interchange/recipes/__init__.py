"""Recipes that are Python programs: what their functions would build is worked out from the source; nothing is run.

values       what an expression is worth: plain values, objects with their arguments, and what cannot be told
sources      modules and what they import, looked for in folders
evaluation   statements and expressions of a function
recipe       the configuration that a function or a script builds, as a mapping
"""

from hybrid_des.interchange.recipes.recipe import Built, Unfounded, built_by, function_in
from hybrid_des.interchange.recipes.values import Undecided

__all__ = ["Built", "Undecided", "Unfounded", "built_by", "function_in"]
