"""Write the gallery page and the notebooks from the examples.

The page shows what each example says about itself. A notebook has the example's own code, a cell
for each function or class, and no outputs.

    python docs/scripts/gallery.py
"""

import ast
import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent
EXAMPLES = DOCS.parent / "examples"

_HEAD = """\
# Gallery

<!-- made by docs/scripts/gallery.py from the examples -->

Each example is one file without data, runs in less than a minute on a CPU, prints what to see, and
ends with claims that the tests check. The notebooks hold the same code; they need `discretegrad`
installed and nothing else.
"""
_LAST = 'if __name__ == "__main__":\n    main()'


def files() -> dict[Path, str]:
    """Every file that is made here and the text it should have."""
    examples = {path: path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.py"))}
    made = {DOCS / "gallery.md": "\n".join([_HEAD, *map(_entry, examples)])}
    for path, text in examples.items():
        made[DOCS / "notebooks" / f"{path.stem}.ipynb"] = _notebook(text)
    return made


def _words(text: str) -> tuple[str, str]:
    """The first sentence of an example's docstring, and the rest but for the command."""
    docstring = ast.get_docstring(ast.parse(text)) or ""
    title, _, rest = docstring.partition("\n\n")
    return title.rstrip("."), rest.rpartition("\n\n")[0].replace("``", "`")


def _entry(path: Path) -> str:
    title, words = _words(path.read_text(encoding="utf-8"))
    return (
        f"## {title}\n\n{words}\n\n```bash\npython examples/{path.name}\n```\n\n"
        f"[Notebook](notebooks/{path.stem}.ipynb)\n"
    )


def _notebook(text: str) -> str:
    """The notebook of an example, as JSON."""
    title, words = _words(text)
    pieces = [("markdown", f"# {title}\n\n{words}"), *(("code", x) for x in _cells(text))]
    cells: list[dict[str, Any]] = []
    for number, (kind, source) in enumerate(pieces):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append({**cell, "source": source.splitlines(keepends=True)})
    language = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {
        "cells": cells,
        "metadata": {"kernelspec": language},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _cells(text: str) -> list[str]:
    """The code of an example: what precedes its functions, then each of them, then the call."""
    docstring, *statements = ast.parse(text).body
    lines = text.splitlines()
    starts = [docstring.end_lineno or 0]
    previous_is_definition = False
    for statement in statements[:-1]:
        definition = isinstance(statement, ast.FunctionDef | ast.ClassDef)
        if definition or previous_is_definition:
            decorators = getattr(statement, "decorator_list", [])
            starts.append(min(x.lineno for x in (statement, *decorators)) - 1)
        previous_is_definition = definition
    ends = [*starts[1:], statements[-1].lineno - 1]
    cells = ["\n".join(lines[a:b]).strip() for a, b in zip(starts, ends, strict=True)]
    if "\n".join(lines[ends[-1] :]).strip() != _LAST:
        raise ValueError(f"expected an example that ends with a call of main, got {lines[-2:]}")
    return [*filter(None, cells), "main()"]


def main() -> None:
    """Write them."""
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
