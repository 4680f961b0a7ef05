"""How the API pages read the source: an extension of griffe."""

import re
from typing import Any

import griffe


class HouseStyle(griffe.Extension):
    """Knows the sections of the docstrings, and that a function may have the name of its file."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Show ``Example:`` as code, as the plural would be, and ``References:`` as a paragraph."""
        if obj.docstring:
            text = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^References:\s+", "**References:** ", text)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Let ``discretegrad.expectation`` be the function, as in Python, not its file."""
        hidden = [name for name in pkg.imports if name in pkg.modules]
        through = tuple(f"{pkg.path}.{name}." for name in hidden)
        # all before the first change: what a hidden file holds is found through its name
        members = {
            name: _member(pkg, path)
            for name, path in pkg.imports.items()
            if name in hidden or path.startswith(through)
        }
        for name, member in members.items():
            pkg.set_member(name, member)


def _member(pkg: griffe.Module, path: str) -> griffe.Object:
    """The object behind a path, through files that only hand it on."""
    member: Any = pkg
    for part in path.split(".")[1:]:
        member = member.members[part]
    return member.final_target if member.is_alias else member
