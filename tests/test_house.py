"""The rules of the house: structure, documentation, packaging. See CONTRIBUTING.md."""

import ast
import contextlib
import csv
import doctest
import fnmatch
import functools
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import discretegrad
from discretegrad import ESTIMATORS, bernoulli

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "discretegrad"
DOCS = ROOT / "docs"
SKELETON = DOCS / "skeleton"
MODULES = sorted(PACKAGE.rglob("*.py"))
FAMILIES = {"categorical": discretegrad, "bernoulli": bernoulli}
FOLDERS = {"categorical": "estimators", "bernoulli": "bernoulli"}
SAMPLERS = [
    (row.name, family)
    for row in ESTIMATORS.values()
    if row.kind == "sampler"
    for family in FAMILIES
]
SCORES = [row.name for row in ESTIMATORS.values() if row.kind == "score"]
# stored numbers are rounded to four places; those with noise are compared on fewer draws
ROUNDING = 1e-4
FEWER_DRAWS = {"bias": 0.02, "deviation": 0.05, "cosine": 0.005}


def module_name(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def name_of(path):
    return str(path.relative_to(ROOT))


def load(path, name=None):
    """Import a file that is not installed, under the name it would have if it were."""
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# structure


def imports(path, *, top_level=False):
    """Every module that a file imports (when it is imported), with its full name."""
    package = module_name(path)
    if path.name != "__init__.py":
        package = package.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parts, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


# what the files of a folder may not import
FORBIDDEN = {
    "kernels": ("discretegrad.estimators", "discretegrad.bernoulli", "discretegrad_lab"),
    "estimators": ("discretegrad.bernoulli", "discretegrad_lab"),
    "bernoulli": ("discretegrad_lab",),
    ".": ("discretegrad_lab",),
}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path):
    forbidden = FORBIDDEN[str(path.parent.relative_to(PACKAGE))]
    assert not [name for name in imports(path) if name.startswith(forbidden)]


# helpers that the estimators are built from know nothing of them
SHARED = [
    path
    for path in MODULES
    if path.parent == PACKAGE
    and path.name
    not in (
        "__init__.py",
        "_registry.py",
        "_expectation.py",
        "_diagnostics.py",
        "_linear_select.py",
    )
]


@pytest.mark.parametrize("path", SHARED, ids=name_of)
def test_shared_helpers_import_no_estimator(path):
    folders = tuple(f"discretegrad.{folder}" for folder in FOLDERS.values())
    assert not [name for name in imports(path) if name.startswith(folders)]


# what is imported inside a function, where a user asks for it
OPTIONAL = {
    "_checks.py": {"matplotlib"},
    "_diagnosis.py": {"matplotlib"},
    "_progress.py": {"rich"},
}


# imported on the way to a kernel, and nowhere else
TRITON = [path for path in MODULES if path.parent.name == "kernels" and path.name != "dispatch.py"]


def test_the_library_is_imported_without_triton():
    code = "import sys; sys.modules['triton'] = None; import discretegrad"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": "src"}, cwd=ROOT
    )


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_runs_on_torch_and_the_standard_library(path):
    allowed = {"discretegrad", "torch"} | sys.stdlib_module_names
    if path in TRITON:
        allowed |= {"triton"}
    on_import = {name.split(".")[0] for name in imports(path, top_level=True)}
    assert on_import <= allowed
    roots = {name.split(".")[0] for name in imports(path)}
    assert roots <= allowed | OPTIONAL.get(path.name, set())


@pytest.mark.parametrize("family", FAMILIES)
def test_one_file_for_every_row_and_one_row_for_every_file(family):
    files = {path.stem for path in (PACKAGE / FOLDERS[family]).glob("[!_]*.py")}
    scores = {name for name in SCORES if home(name) == family}
    assert files == {name for name, _ in SAMPLERS} | scores


def home(score):
    """The family whose folder a score-function estimator is in."""
    return "categorical" if "categorical" in ESTIMATORS[score].families else "bernoulli"


@pytest.mark.parametrize("name", SCORES)
def test_a_score_function_has_one_name_and_one_function(name):
    row, family = ESTIMATORS[name], home(name)
    assert row.name == name
    for function in row.functions.values():
        assert function is getattr(FAMILIES[family], name)
        assert function.__name__ == name
        assert function.__module__ == f"discretegrad.{FOLDERS[family]}.{name}"
    assert name in FAMILIES[family].__all__
    if row.module is not None:
        assert getattr(FAMILIES[family], row.module.__name__) is row.module
        assert row.module.__module__ == f"discretegrad.{FOLDERS[family]}.{name}"


@pytest.mark.parametrize(("name", "family"), SAMPLERS)
def test_file_function_and_key_have_one_name(name, family):
    row, module = ESTIMATORS[name], f"discretegrad.{FOLDERS[family]}.{name}"
    for function, expected in (
        (row.functions[family], name),
        (row.functions_at[family], f"{name}_at"),
    ):
        assert (function.__name__, function.__module__) == (expected, module)
        assert getattr(FAMILIES[family], expected) is function
        assert expected in FAMILIES[family].__all__
    assert row.name == name


# where an error for users may be raised besides _checks.py and kernels/dispatch.py
RAISES = {
    "_registry.py": {"get"},
    "_exact.py": {"_problem"},
    "_attach.py": {"backward"},  # the second derivative
}


def raises(node, function=None):
    """The innermost function around every ``raise`` of a new error."""
    if isinstance(node, ast.FunctionDef):
        function = node.name
    if isinstance(node, ast.Raise) and node.exc is not None:
        yield function
    for child in ast.iter_child_nodes(node):
        yield from raises(child, function)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_errors_are_raised_in_one_place(path):
    relative = str(path.relative_to(PACKAGE))
    if relative not in ("_checks.py", "kernels/dispatch.py"):
        assert set(raises(ast.parse(path.read_text()))) <= RAISES.get(relative, set())


def test_every_error_says_what_was_expected():
    nodes = [
        (path, node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and node.exc is not None and path.name != "_attach.py"
    ]
    assert len(nodes) > 30
    silent = [
        f"{path.name}:{node.lineno}"
        for path, node in nodes
        if not re.search(r"expected|cannot run", ast.unparse(node))
    ]
    assert not silent


RANDOM = re.compile(
    r"torch\.(rand|randn|randint|normal|multinomial|bernoulli|poisson)\w*\("
    r"|\.(exponential_|uniform_|normal_|random_|bernoulli_|geometric_|cauchy_)\("
)


@pytest.mark.parametrize("path", [p for p in MODULES if p.name != "_draw.py"], ids=name_of)
def test_random_numbers_come_from_one_file(path):
    # through the syntax tree, so that docstrings and messages may mention them
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if RANDOM.search(ast.unparse(call.func) + "(")]


# signatures


def parameters(function, kind):
    listed = inspect.signature(function).parameters.values()
    return [(p.name, p.default) for p in listed if p.kind is kind]


def expected_keywords(row, family, common):
    options = [(key, value) for key, value in row.options.items()]
    axis = [("dim", -1)] if family == "categorical" else []
    return [*options, *axis, *common]


@pytest.mark.parametrize(("name", "family"), SAMPLERS)
def test_samplers_have_the_common_signature(name, family):
    row = ESTIMATORS[name]
    function = row.functions[family]
    empty = inspect.Parameter.empty
    assert parameters(function, inspect.Parameter.POSITIONAL_OR_KEYWORD) == [
        ("logits", empty),
        ("tau", 1.0),
    ]
    common = [("mask", None), ("generator", None), ("backend", "auto")]
    keywords = expected_keywords(row, family, common)
    assert parameters(function, inspect.Parameter.KEYWORD_ONLY) == keywords
    assert inspect.signature(function).return_annotation is torch.Tensor


@pytest.mark.parametrize(("name", "family"), SAMPLERS)
def test_deterministic_halves_take_the_draw_after_the_logits(name, family):
    row = ESTIMATORS[name]
    function = row.functions_at[family]
    draw = ["index" if family == "categorical" else "value", *(["noise"] if row.noise else [])]
    names = [p for p, _ in parameters(function, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    assert names == ["logits", *draw, "tau"]
    # the number of draws is the shape of the noise
    keywords = expected_keywords(row, family, [("mask", None), ("backend", "auto")])
    keywords = [(key, value) for key, value in keywords if key != "num_draws"]
    assert parameters(function, inspect.Parameter.KEYWORD_ONLY) == keywords


@pytest.mark.parametrize("name", dict(SAMPLERS))
def test_index_forms_have_the_signature_of_their_sampler(name):
    row = ESTIMATORS[name]
    function = getattr(discretegrad, f"{name}_index")
    assert row.index_form is function
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    for kind in kinds:
        listed = parameters(row.functions["categorical"], kind)
        # an index is never relaxed
        assert parameters(function, kind) == [p for p in listed if p[0] != "hard"]


@pytest.mark.parametrize("name", SCORES)
def test_score_functions_have_the_common_signature(name):
    row, family = ESTIMATORS[name], home(name)
    function = row.functions[family]
    empty = inspect.Parameter.empty
    assert parameters(function, inspect.Parameter.POSITIONAL_OR_KEYWORD) == [
        ("logits", empty),
        ("f", empty),
    ]
    assert parameters(function, inspect.Parameter.KEYWORD_ONLY) == [
        ("num_samples", row.min_samples),
        ("family", family),
        *row.options.items(),
        ("mask", None),
        ("generator", None),
        # enumeration has thousands of outcomes to evaluate
        ("vectorize", name == "exact"),
    ]
    assert inspect.signature(function).return_annotation is torch.Tensor


# docstrings and API pages

SECTIONS = ("Args:", "Returns:", "Raises:", "Example:", "References:")
SAMPLER_PARAGRAPHS = ("Symbols:", "Properties:", "Differs from", *SECTIONS)
PUBLIC = [
    *(f"discretegrad.{name}" for name in discretegrad.__all__ if name != "bernoulli"),
    *(f"discretegrad.bernoulli.{name}" for name in bernoulli.__all__),
]


def public(name):
    return functools.reduce(getattr, name.split(".")[1:], discretegrad)


FUNCTIONS = [name for name in PUBLIC if inspect.isfunction(public(name))]


def outline(docstring, headings):
    """Which of the headings begin a line, in their order there."""
    lines = inspect.cleandoc(docstring).splitlines()
    return [h for line in lines for h in headings if line.startswith(h)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_have_the_sections_in_order(name):
    docstring = public(name).__doc__
    summary, blank = inspect.cleandoc(docstring).splitlines()[:2]
    assert summary.endswith((".", ":"))
    assert not blank
    found = outline(docstring, SECTIONS)
    assert found == [section for section in SECTIONS if section in found]
    assert {"Args:", "Returns:", "Example:"} <= set(found)
    assert ">>> " in docstring


@pytest.mark.parametrize(("name", "family"), SAMPLERS)
def test_samplers_document_symbols_properties_and_differences(name, family):
    docstring = ESTIMATORS[name].functions[family].__doc__
    found = list(dict.fromkeys(outline(docstring, SAMPLER_PARAGRAPHS)))
    assert found == list(SAMPLER_PARAGRAPHS)
    assert "$$" in docstring


@pytest.mark.parametrize("name", SCORES)
def test_score_functions_document_symbols_properties_and_differences(name):
    docstring = ESTIMATORS[name].functions[home(name)].__doc__
    found = list(dict.fromkeys(outline(docstring, SAMPLER_PARAGRAPHS)))
    assert found == [part for part in SAMPLER_PARAGRAPHS if part != "References:"]
    assert "$$" in docstring


MODULE_CLASSES = [
    name
    for name in PUBLIC
    if inspect.isclass(public(name)) and issubclass(public(name), torch.nn.Module)
]


def test_every_estimator_that_learns_is_public():
    learns = {row.module for row in ESTIMATORS.values() if row.module}
    assert learns <= {public(name) for name in MODULE_CLASSES}


@pytest.mark.parametrize("name", [*FUNCTIONS, *MODULE_CLASSES])
def test_docstrings_describe_every_argument(name):
    function = public(name)
    text = inspect.cleandoc(function.__doc__).split("\nArgs:\n")[1]
    documented = re.findall(
        r"^    (?:\*\*)?(\w+): ", re.split(r"\n\n(?=\S)", text)[0], re.MULTILINE
    )
    assert documented == list(inspect.signature(function).parameters)


def test_every_module_and_public_class_has_a_docstring():
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text())), path
    for name in PUBLIC:
        assert not inspect.isclass(public(name)) or public(name).__doc__, name


def test_every_public_name_is_on_exactly_one_api_page():
    pages = [path.read_text() for path in (DOCS / "api").glob("*.md")]
    listed = [name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]
    assert sorted(listed) == sorted(PUBLIC)


# pages: their code, their tables, their references

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PYTHON_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def code_blocks(path):
    """(first line, code) of the page's Python blocks."""
    text = path.read_text()
    for match in PYTHON_BLOCK.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match[1]


WITH_CODE = [path for path in PAGES if any(code_blocks(path))]


def test_the_pages_for_beginners_have_code():
    assert {"README.md", "docs/index.md", "docs/migrating.md", "docs/faq.md"} <= {
        name_of(path) for path in WITH_CODE
    }


# Dynamo makes such an instance itself
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("path", WITH_CODE, ids=name_of)
def test_code_on_the_page_runs(path, monkeypatch):
    # the promise is a graph without breaks; machine code for it takes longer than all the rest
    compiler = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", compiler)
    namespace = {"__name__": path.stem}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for line, code in code_blocks(path):
            # empty lines in front, so that a traceback points into the page
            exec(compile("\n" * (line - 1) + code, str(path), "exec"), namespace)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_tests_and_commands_that_a_page_names_exist(path):
    text = path.read_text()
    for file, test in re.findall(r"(tests/\w+\.py)::(\w+)", text):
        assert f"def {test}(" in (ROOT / file).read_text(), test
    for file in re.findall(r"`((?:docs|src|tests|examples|benchmarks)/[\w./]+\.\w+)`", text):
        assert (ROOT / file).exists(), file
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets


def test_contributing_explains_every_test_file():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert {path.name for path in (ROOT / "tests").glob("test_*.py")} == set(
        re.findall(r"`(test_\w+\.py)`", text)
    )


def test_generated_tables_are_current():
    generated = load(DOCS / "scripts" / "tables.py")
    current = generated.pages()
    names = [
        name for text in current.values() for name in re.findall(r"begin generated: (\w+)", text)
    ]
    assert sorted(names) == sorted(generated.tables())
    for path, text in current.items():
        assert path.read_text() == text, f"{path.name} is old: python docs/scripts/tables.py"


def test_what_the_page_says_of_all_samplers_is_true():
    rows = [ESTIMATORS[name] for name, _ in SAMPLERS]
    assert all(row.cost(1) == (1, 1) and not row.unbiased for row in rows)
    assert all(row.families == tuple(FAMILIES) for row in rows)
    assert all(ESTIMATORS[name].unbiased for name in SCORES)


@pytest.mark.parametrize("noise", [False, True], ids=["enumerated", "with noise"])
def test_stored_numbers_follow_from_the_script(noise):
    script = load(DOCS / "scripts" / "bias_and_variance.py")
    with script.RESULT.open(newline="") as file:
        stored = list(csv.DictReader(file))
    settings = list(script.settings())
    assert len(stored) == len(settings) * len(script.problems().functions)
    chosen = [s for s in settings if ESTIMATORS[s.variant.name].noise == noise]
    if noise:  # the others need more draws than there is time for
        chosen = [s for s in chosen if s.tau == 0.5]
    tolerance = FEWER_DRAWS if noise else dict.fromkeys(FEWER_DRAWS, ROUNDING)

    def key(row):
        return row["estimator"], row["tau"], row["logit_scale"], row["f"]

    index = {key(row): row for row in stored}
    for row in script.rows(chosen, num_noise=2**10):
        for name, allowed in tolerance.items():
            value = float(index[key(row)][name])
            assert float(row[name]) == pytest.approx(value, rel=allowed, abs=allowed), key(row)


# the built site


class Resources(HTMLParser):
    """Everything that a browser would fetch or run for a page."""

    def __init__(self, page):
        super().__init__()
        self.fetched = []
        self.formulas = 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.formulas += tag == "math"
        if tag == "link" and attrs.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.append(attrs["href"])
        elif tag in ("script", "img", "iframe", "source") and attrs.get("src"):
            self.fetched.append(attrs["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # material announces its own end of life, which is not about this site
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    # without --quiet, which would hide warnings from --strict
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


def test_the_site_needs_no_network(site):
    for page in site.rglob("*.html"):
        for address in Resources(page.read_text()).fetched:
            assert not re.match(r"(\w+:)?//", address), (page.name, address)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(\w+:)?//", sheet.read_text()), sheet.name


def test_formulas_are_shown_without_a_script(site):
    formulas = {page.stem: page.read_text() for page in site.rglob("*.html")}
    assert Resources(formulas["theory"]).formulas > 50
    assert Resources(formulas["samplers"]).formulas > 50
    for name, page in formulas.items():
        assert "arithmatex" not in page, name


def test_every_public_name_is_shown_with_its_own_docstring(site):
    pages = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    headings = re.findall(r'<h2 id="(discretegrad\.[^"]+)"', pages)
    assert sorted(headings) == sorted(PUBLIC)
    assert pages.count("Examples:") == len(FUNCTIONS) + len(MODULE_CLASSES)
    assert "<blockquote>" not in pages


def test_every_page_can_be_found_by_searching(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].split("#")[0] for entry in index["docs"]}
    assert {str(path.relative_to(DOCS).with_suffix(".html")) for path in DOCS.rglob("*.md")} <= {
        location or "index.html" for location in found
    }


# the skeleton for new estimators


@pytest.fixture
def skeleton(monkeypatch):
    """The skeleton's registry row, as if its files had been copied into the package."""
    for family, folder in FOLDERS.items():
        name = f"discretegrad.{folder}.my_estimator"
        module = load(SKELETON / folder / "my_estimator.py", name)
        monkeypatch.setitem(sys.modules, name, module)
        for function in ("my_estimator", "my_estimator_at"):
            value = getattr(module, function)
            monkeypatch.setattr(FAMILIES[family], function, value, raising=False)
    return load(SKELETON / "registry_row.py", "discretegrad.registry_row").ROW


@pytest.mark.parametrize("folder", FOLDERS.values())
def test_examples_of_the_skeleton_run(folder, skeleton):
    module = sys.modules[f"discretegrad.{folder}.my_estimator"]
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 6
    assert result.failed == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_skeleton_looks_like_the_gold_standard(family, skeleton):
    model = ESTIMATORS["reinmax"]
    for ours, theirs in (
        (skeleton.functions, model.functions),
        (skeleton.functions_at, model.functions_at),
    ):
        assert inspect.signature(ours[family]) == inspect.signature(theirs[family])
        assert outline(ours[family].__doc__, SAMPLER_PARAGRAPHS) == list(
            dict.fromkeys(outline(theirs[family].__doc__, SAMPLER_PARAGRAPHS))
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_skeleton_is_exact_for_what_its_row_says(family, skeleton):
    generator = torch.Generator().manual_seed(0)
    logits, b = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    if family == "categorical":
        draws, prob = torch.arange(4), logits.softmax(-1)
        rows, weights = logits.expand(4, 4).clone(), prob.unsqueeze(-1)
        exact = discretegrad.exact_gradient(logits, lambda z: z @ b)
    else:
        draws = torch.tensor([[0.0] * 4, [1.0] * 4])
        rows, prob = logits.expand(2, 4).clone(), torch.sigmoid(logits)
        weights = torch.stack([1 - prob, prob])
        exact = discretegrad.exact_gradient(logits, lambda z: z @ b, family=family)
    rows.requires_grad_()
    sample = skeleton.functions_at[family](rows, draws)
    assert ((sample == 0) | (sample == 1)).all()
    (gradient,) = torch.autograd.grad((sample * b).sum(), rows)
    torch.testing.assert_close((weights * gradient).sum(0), exact)
    assert skeleton.exact_for == "linear"


@pytest.mark.parametrize("tau", [1.0, 0.7])
def test_skeleton_has_one_formula_for_both_families(tau, skeleton, generator):
    logits = torch.randn(50, dtype=torch.float64, generator=generator).requires_grad_()
    value = torch.rand(50, generator=generator) < 0.5
    g = torch.randn(50, dtype=torch.float64, generator=generator)
    sample = skeleton.functions_at["bernoulli"](logits, value, tau)
    (ours,) = torch.autograd.grad(sample, logits, g)

    pairs = torch.stack([logits.detach(), torch.zeros_like(g)], -1).requires_grad_()
    sample = skeleton.functions_at["categorical"](pairs, 1 - value.long(), tau)
    (theirs,) = torch.autograd.grad(sample[:, 0], pairs, g)
    torch.testing.assert_close(ours, theirs[:, 0])


@pytest.mark.parametrize("family", FAMILIES)
def test_skeleton_samples(family, skeleton):
    logits = torch.zeros(1000, 4, requires_grad=True)
    sample, model = (
        row.functions[family](logits, generator=torch.Generator().manual_seed(0))
        for row in (skeleton, ESTIMATORS["reinmax"])
    )
    assert torch.equal(sample, model)


# files of the repository


def repository_files():
    """What git would track: everything that .gitignore does not name."""
    patterns = [".git", *(line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split())]

    def kept(names):
        return [name for name in names if not any(fnmatch.fnmatch(name, p) for p in patterns)]

    for folder, folders, files in os.walk(ROOT):
        folders[:] = kept(folders)
        yield from (Path(folder, name) for name in kept(files))


# written so that they do not match themselves
MACHINE = re.compile(r"(?<![\w.:/-])/(?:work|tmp|home|root|Users|mnt)/\w|[A-Z]:\\{1,2}Users")
REGISTRY = re.compile(r"py[p]i\.org|pythonhosted\.or[g]|--(?:extra-)?index-ur[l]|conda\.anacond[a]")


def test_files_name_no_machine_and_no_package_registry():
    for path in repository_files():
        with contextlib.suppress(UnicodeDecodeError):
            text = path.read_text(encoding="utf-8")
            found = MACHINE.search(text) or REGISTRY.search(text)
            assert not found, f"{path.relative_to(ROOT)}: {found[0]}"


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    version = re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1]
    date = re.search(r"^date-released: (\S+)$", citation, re.MULTILINE)[1]
    released = re.findall(r"^## \[([\d.]+)\] - (\S+)$", changelog, re.MULTILINE)
    assert released[0] == (version, date)
    assert discretegrad.__version__ == version


def test_changelog_keeps_to_its_format():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    headings = [line for line in lines if line.startswith("#")]
    assert headings[:2] == ["# Changelog", "## [Unreleased]"]
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert {line.removeprefix("### ") for line in headings if line.startswith("### ")} <= kinds


def test_wheel_holds_the_packages_and_nothing_else(tmp_path, monkeypatch):
    from hatchling.build import build_wheel

    monkeypatch.chdir(ROOT)
    wheel = zipfile.ZipFile(tmp_path / build_wheel(str(tmp_path)))
    with wheel:
        names = set(wheel.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        required = re.findall(r"^Requires-Dist: (.*)$", wheel.read(metadata).decode(), re.MULTILINE)
    lab = [path for path in (SOURCE / "discretegrad_lab").rglob("*") if path.is_file()]
    files = [*MODULES, PACKAGE / "py.typed", *(x for x in lab if x.suffix != ".pyc")]
    sources = {str(path.relative_to(SOURCE)) for path in files}
    assert sources <= names
    assert {name for name in names - sources if ".dist-info/" not in name} == set()
    assert [line for line in required if "extra ==" not in line] == ["torch>=2.6"]
