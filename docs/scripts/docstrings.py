"""How the API pages read the source: an extension of griffe."""

import re
from typing import Any

import griffe


class HouseStyle(griffe.Extension):
    """Knows the sections of the docstrings, and that a sampler has the name of its file."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Show ``Example:`` as code, as the plural would be, and ``References:`` as a paragraph."""
        if obj.docstring:
            text = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^References:\n +", "**References:** ", text)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Let ``discretegrad.bernoulli.reinmax`` be the function, as in Python, not its file."""
        bernoulli = pkg["bernoulli"]
        for module in list(bernoulli.modules.values()):
            for member in [*module.functions.values(), *module.classes.values()]:
                if member.is_public and not member.is_alias:
                    bernoulli.set_member(member.name, member)
