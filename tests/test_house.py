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
from importlib import metadata
from pathlib import Path

import pytest
import torch
import yaml

import discretegrad
from discretegrad import ESTIMATORS, doctor
from discretegrad import __main__ as command_line
from discretegrad.testing import check_sampler

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "discretegrad"
DOCS = ROOT / "docs"
SKELETON = DOCS / "skeleton"
MODULES = sorted(PACKAGE.rglob("*.py"))
EVERY_SOURCE = sorted(SOURCE.rglob("*.py"))
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


def nodes(path, kind=ast.AST):
    """The parts of a file's syntax tree of one kind."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kind)]


def imports(path, *, top_level=False):
    """Every module that a file imports (when it is imported), with its full name."""
    for node in ast.parse(path.read_text()).body if top_level else nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                # the name of an __init__.py is that of its package
                parts = module_name(path).split(".")
                up = node.level - (path.name == "__init__.py")
                base = ".".join([*parts[: len(parts) - up], *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


# from what everybody may import to what nobody but users does
ROOMS = [
    ["_graph", "_modes", "_types"],
    ["_checks", "_math"],
    ["_attach", "_random", "_seeded"],
    ["families"],
    ["select", "kernels", "sparse_mixer"],
    ["sampling"],
    ["_row"],
    ["_score", "_relax", "_stein", "_tree", "exact", "objects"],
    ["estimators"],
    ["registry"],
    ["expectation", "sample_index", "linear_select", "distributions", "replace_gumbel_softmax"],
    ["diagnose", "nn"],
    ["testing", "doctor"],
    ["__main__"],
]
LEVELS = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def room(module):
    parts = module.split(".")
    return parts[1] if parts[0] == "discretegrad" and len(parts) > 1 else None


def test_every_file_and_folder_is_a_room():
    assert {room(module_name(path)) for path in MODULES} - {None} == set(LEVELS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path):
    assert not [name for name in imports(path) if name.startswith("discretegrad_lab")]
    own = room(module_name(path))
    if own is None:
        return
    # what a function imports when it is called, on its way to a kernel, comes later
    names = [name for name in imports(path, top_level=True) if room(name) in LEVELS]
    upward = [name for name in names if LEVELS[room(name)] > LEVELS[own]]
    assert not upward, upward


@pytest.mark.parametrize("path", EVERY_SOURCE, ids=name_of)
def test_files_are_short(path):
    lines = len(path.read_text().splitlines())
    assert lines <= (130 if path.parent == PACKAGE / "estimators" else 450)


def passed_on(function):
    """The most of its own arguments that a function passes on in one call, but to a record."""
    listed = function.args
    own = {x.arg for x in (*listed.posonlyargs, *listed.args, *listed.kwonlyargs)}
    most = 0
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        callee = ast.unparse(call.func).rpartition(".")[2]
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not callee[0].isupper():
            most = max(most, sum(isinstance(x, ast.Name) and x.id in own for x in values))
    return most


# Triton compiles flat lists of arguments
JITTED = ("jit", "triton.jit")


@pytest.mark.parametrize("path", EVERY_SOURCE, ids=name_of)
def test_no_function_passes_more_than_seven_arguments_on(path):
    for node in nodes(path, ast.FunctionDef):
        if not any(ast.unparse(x).startswith(JITTED) for x in node.decorator_list):
            assert passed_on(node) <= 7, node.name


@pytest.mark.parametrize("path", EVERY_SOURCE, ids=name_of)
def test_the_oldest_triton_can_read_every_kernel(path):
    """That of torch 2.6 takes "a or b" and "a < b", but no third part without parentheses."""
    kernels = (
        function
        for function in nodes(path, ast.FunctionDef)
        if any(ast.unparse(x).startswith(JITTED) for x in function.decorator_list)
    )
    chains = [
        f"{function.name}: {ast.unparse(node)}"
        for function in kernels
        for node in ast.walk(function)
        if (isinstance(node, ast.BoolOp) and len(node.values) > 2)
        or (isinstance(node, ast.Compare) and len(node.ops) > 1)
    ]
    assert not chains


# what is imported inside a function, where a user asks for it
OPTIONAL = {"plot.py": {"matplotlib"}, "progress.py": {"rich"}}
# imported on the way to a kernel, and nowhere else
WITHOUT_TRITON = ("dispatch.py", "samplers.py")
TRITON = [
    path for path in MODULES if path.parent.name == "kernels" and path.name not in WITHOUT_TRITON
]


def test_the_library_runs_without_triton():
    code = """
import sys
sys.modules["triton"] = None
import torch, discretegrad
from discretegrad_lab.__main__ import main
logits = torch.zeros(4, 3, requires_grad=True)
samplers = [row for row in discretegrad.ESTIMATORS.values() if row.kind == "sampler"]
for sample in (
    *(row.function(logits) for row in samplers),
    discretegrad.reinmax(logits, family=discretegrad.Subset(2)),
    discretegrad.nn.VectorQuantize(3, 5)(logits)[0],
    discretegrad.sparse_mixer(logits, 2)[0],
):
    sample.sum().backward()
sys.argv = ["discretegrad", "list"]
main()
"""
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


def test_one_file_for_every_row_and_one_row_for_every_file():
    assert {path.stem for path in (PACKAGE / "estimators").glob("[!_]*.py")} == set(ESTIMATORS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_file_function_and_key_have_one_name(name):
    row = ESTIMATORS[name]
    assert row.name == row.function.__name__ == name
    assert row.function.__module__ == f"discretegrad.estimators.{name}"
    assert getattr(discretegrad, name) is row.function
    assert name in discretegrad.__all__
    if row.module is not None:
        assert getattr(discretegrad, row.module.__name__) is row.module
        assert row.module.__name__ in discretegrad.__all__


def test_every_error_says_what_was_expected():
    checked = [path for path in MODULES if path.name not in ("_attach.py", "testing.py")]
    raised = [(path, node) for path in checked for node in nodes(path, ast.Raise) if node.exc]
    assert len(raised) > 30
    for path, node in raised:
        message = ast.unparse(node)
        assert re.search(r"expected|cannot run", message), f"{path.name}:{node.lineno}"


RANDOM = re.compile(
    r"torch\.(rand|randn|randint|normal|multinomial|bernoulli|poisson)\w*\("
    r"|\.(exponential_|uniform_|normal_|random_|bernoulli_|geometric_|cauchy_)\("
)


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.name not in ("_random.py", "testing.py")], ids=name_of
)
def test_random_numbers_come_from_one_file(path):
    # through the syntax tree, so that docstrings and messages may mention them
    for call in nodes(path, ast.Call):
        assert not RANDOM.search(ast.unparse(call.func) + "("), call.lineno


# signatures


def parameters(function, kind):
    listed = inspect.signature(function).parameters.values()
    return [(p.name, p.default) for p in listed if p.kind is kind]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_of_a_kind_have_one_signature(name):
    row, empty = ESTIMATORS[name], inspect.Parameter.empty
    second = ("tau", 1.0) if row.kind == "sampler" else ("f", empty)
    positional = parameters(row.function, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert positional == [("logits", empty), second]
    common = {"family": row.families[0], "given": None, **dict.fromkeys(row.takes), "mask": None}
    common |= {"generator": None}
    if row.kind == "sampler":
        common |= {"hard": True, "dim": -1, "backend": "auto"}
    else:
        # enumeration draws nothing, and has thousands of outcomes to evaluate
        common |= {"num_samples": None, "vectorize": name == "exact"}
    if name == "exact":
        del common["given"]
    keywords = dict(parameters(row.function, inspect.Parameter.KEYWORD_ONLY))
    assert keywords == {**row.options, **common}
    if row.kind == "sampler":
        order = ["family", "given", *row.takes, "dim", "mask", "generator", "backend"]
        assert [key for key in keywords if key in order] == order
    assert inspect.signature(row.function).return_annotation is torch.Tensor


# docstrings and API pages

SECTIONS = ("Args:", "Returns:", "Raises:", "Example:", "References:")
PARAGRAPHS = ("Symbols:", "Properties:", "Differs from")
PUBLIC = [
    *(f"discretegrad.{name}" for name in discretegrad.__all__),
    *(f"discretegrad.nn.{name}" for name in discretegrad.nn.__all__),
    *(f"discretegrad.distributions.{name}" for name in discretegrad.distributions.__all__),
]
# what is documented once, for all of a kind
SHARED = {"sampler": "reinmax", "score": "reinforce"}
REFERS = "are those of ``{}``"


def public(name):
    return functools.reduce(getattr, name.split(".")[1:], discretegrad)


FUNCTIONS = [name for name in PUBLIC if inspect.isfunction(public(name))]


def outline(docstring, headings):
    """Which of the headings begin a line, in their order there."""
    lines = inspect.cleandoc(docstring).splitlines()
    return [h for line in lines for h in headings if line.startswith(h)]


def refers(name):
    """Whether a docstring leaves what is common to all estimators of its kind to one of them."""
    row = ESTIMATORS.get(name.rpartition(".")[2])
    return row is not None and REFERS.format(SHARED[row.kind]) in row.function.__doc__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_have_the_sections_in_order(name):
    docstring = public(name).__doc__
    summary, blank = inspect.cleandoc(docstring).splitlines()[:2]
    assert summary.endswith((".", ":"))
    assert not blank
    found = outline(docstring, SECTIONS)
    assert found == [section for section in SECTIONS if section in found]
    assert {"Args:", "Example:"} <= set(found) or refers(name)
    assert "Returns:" in found or refers(name)
    assert ">>> " in docstring


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_document_symbols_properties_and_differences(name):
    docstring = ESTIMATORS[name].function.__doc__
    assert outline(docstring, PARAGRAPHS) == list(PARAGRAPHS)
    assert "$$" in docstring


MADE_BY_USERS = [
    name
    for name in PUBLIC
    if inspect.isclass(public(name))
    and issubclass(
        public(name), torch.nn.Module | torch.distributions.Distribution | discretegrad.Family
    )
    and not inspect.isabstract(public(name))
]


@pytest.mark.parametrize("name", [*FUNCTIONS, *MADE_BY_USERS])
def test_docstrings_describe_every_argument(name):
    function = public(name)
    text = inspect.cleandoc(function.__doc__).split("\nArgs:\n")[1]
    documented = re.findall(
        r"^    (?:\*\*)?(\w+): ", re.split(r"\n\n(?=\S)", text)[0], re.MULTILINE
    )
    expected = list(inspect.signature(function).parameters)
    if refers(name):
        shared = inspect.signature(ESTIMATORS[SHARED[ESTIMATORS[function.__name__].kind]].function)
        assert set(expected) - set(shared.parameters) <= set(documented) <= set(expected)
    else:
        assert documented == expected


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
assert len(WITH_CODE) > 4, "the pattern of code blocks finds none"


# Dynamo makes such an instance itself
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("path", WITH_CODE, ids=name_of)
def test_code_on_the_page_runs(path, monkeypatch):
    if path.name == "jax.md":
        pytest.importorskip("jax", reason="needs the extra [jax]")
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


def test_one_rule_for_the_temperature():
    pages = (ROOT / "README.md", DOCS / "choosing-an-estimator.md", DOCS / "theory.md")
    rule = r"\*\*One rule for the temperature\.\*\*.*?(?=\n\n)"
    assert len({re.search(rule, page.read_text(), re.DOTALL)[0] for page in pages}) == 1


def test_generated_tables_are_current():
    generated = load(DOCS / "scripts" / "tables.py")
    current = generated.pages()
    names = [
        name for text in current.values() for name in re.findall(r"begin generated: (\w+)", text)
    ]
    assert sorted(names) == sorted(generated.tables())
    for path, text in current.items():
        assert path.read_text() == text, f"{path.name} is old: python docs/scripts/tables.py"


@pytest.mark.parametrize("noise", [False, True], ids=["enumerated", "with noise"])
def test_stored_numbers_follow_from_the_script(noise):
    script = load(DOCS / "scripts" / "bias_and_variance.py")
    with script.RESULT.open(newline="") as file:
        stored = list(csv.DictReader(file))
    settings = list(script.settings())
    assert len(stored) == len(settings) * len(script.problems().functions)
    chosen = [s for s in settings if bool(ESTIMATORS[s.variant.name].takes) == noise]
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


def test_stored_numbers_on_subsets_follow_from_their_script():
    script = load(DOCS / "scripts" / "subset_orders.py")
    with script.RESULT.open(newline="") as file:
        stored = list(csv.DictReader(file))
    assert len(stored) == len(script.SIZES) * len(script.STEEPNESS) * len(script.VARIANTS)
    again = list(script.rows(sizes=(2,), steepness=(0.5,)))
    assert again == [row for row in stored if (row["k"], row["steepness"]) == ("2", "0.5")]


def test_stored_numbers_on_routers_follow_from_their_script():
    script = load(DOCS / "scripts" / "router_gradients.py")
    with script.RESULT.open(newline="") as file:
        stored = list(csv.DictReader(file))
    assert len(stored) == len(script.STEEPNESS) * len(script.ROUTERS)
    again = list(script.rows(steepness=(1.0,)))
    assert again == [row for row in stored if row["steepness"] == "1.0"]
    bias = {row["router"]: {x: float(row[x]) for x in ("routing", "both")} for row in again}
    assert bias["version 1"]["both"] < 0.1 < 0.9 < bias["version 1"]["routing"]
    assert bias["version 2, reduce_best"]["routing"] < 0.005
    assert bias["version 2"]["routing"] < 0.15 < 0.4 < bias["version 2"]["both"]


def test_stored_numbers_on_newer_estimators_follow_from_their_script():
    script = load(DOCS / "scripts" / "newer_estimators.py")
    with script.RESULT.open(newline="") as file:
        stored = list(csv.DictReader(file))
    assert len(stored) == len(script.LOSSES) * len(script.ESTIMATORS)
    problem = next(script.problems("quadratic", 1))
    linear = problem._replace(f=lambda z: z @ problem.logits)
    for name, estimator in script.ESTIMATORS.items():
        biases = []
        for one in (linear, problem):
            true = one.true_gradient()
            biases.append((one.probs @ estimator(one) - true).norm() / true.norm())
        exact = name.startswith(("MVE", "ReinMax")) and "-" not in name and name != "MVE, t = 1"
        assert (biases[0] < 1e-12) == ("-" not in name), name
        assert (biases[1] < 1e-5) == exact, name
    # the others average over noise, which takes long
    for name in [name for name in script.ESTIMATORS if "-" in name]:
        del script.ESTIMATORS[name]
    again = list(script.rows(["steepness 1.0"]))
    known = {(row["estimator"], row["f"]): row for row in stored}
    assert again == [known[row["estimator"], row["f"]] for row in again]


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
        # a bar without space around it, so that ||x|| does not fall apart
        bars = re.findall(r"<mo([^>]*)>(?:&#x0007C;|\|)</mo>", page)
        assert all("lspace" in bar or "fence" in bar for bar in bars), name


def test_every_public_name_is_shown_with_its_own_docstring(site):
    pages = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    headings = re.findall(r'<h2 id="(discretegrad\.[^"]+)"', pages)
    assert sorted(headings) == sorted(PUBLIC)
    assert pages.count("Examples:") == len(FUNCTIONS) + len(MADE_BY_USERS)
    assert "<blockquote>" not in pages


def test_every_page_can_be_found_by_searching(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].split("#")[0] for entry in index["docs"]}
    assert {str(path.relative_to(DOCS).with_suffix(".html")) for path in DOCS.rglob("*.md")} <= {
        location or "index.html" for location in found
    }


# the skeleton for new estimators, which the page about adding one is followed with


@pytest.fixture
def skeleton():
    return load(SKELETON / "my_sampler.py")


def test_skeleton_is_an_estimator_like_the_others(skeleton):
    examples = doctest.testmod(skeleton, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert examples.attempted >= 4
    assert examples.failed == 0
    ours, model = (
        inspect.signature(row.function).parameters for row in (skeleton.ROW, ESTIMATORS["reinmax"])
    )
    assert set(model) - set(ours) == {"hard"}
    assert outline(skeleton.ROW.function.__doc__, PARAGRAPHS) == list(PARAGRAPHS)
    check_sampler(skeleton.ROW)


def test_skeleton_needs_nothing_private_and_one_file():
    names = [name for name in imports(SKELETON / "my_sampler.py") if "discretegrad" in name]
    assert names
    assert not [name for name in names if "._" in name]


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


def test_changelog_and_citation_agree_on_the_version():
    citation = (ROOT / "CITATION.cff").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    version = re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1]
    date = re.search(r"^date-released: (\S+)$", citation, re.MULTILINE)[1]
    assert discretegrad.__version__ == version
    headings = re.findall(r"^##? .*", changelog, re.MULTILINE)
    assert headings[:3] == ["# Changelog", "## [Unreleased]", f"## [{version}] - {date}"]
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)", changelog, re.MULTILINE)) <= kinds


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


def test_what_is_skipped_without_a_package_has_a_command_that_installs_it():
    recipe = re.search(
        r"^test-peers:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    install, run = recipe[1].splitlines()
    needed = re.compile(r"needs the extra \[(peers|jax)\]")
    this = Path(__file__)
    for path in sorted(this.parent.glob("test_*.py")):
        for extra in needed.findall(path.read_text()) if path != this else ():
            assert f"tests/{path.name}" in run, path.name
            assert re.search(rf"\[.*\b{extra}\b.*\]", install), extra


def test_a_release_is_published_without_a_secret():
    workflow = (ROOT / ".github" / "workflows" / "publish.yml").read_text()
    jobs = yaml.safe_load(workflow)["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"
    commands = [step.get("run") for step in jobs["build"]["steps"]]
    oldest = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    # the wheel that is left, and published, is that of the second
    assert commands[-3:-1] == [f"make test-wheel TORCH={oldest}.0", "make test-wheel"]
    assert "secrets." not in workflow


def test_kernels_may_come_from_any_distribution_of_triton(monkeypatch):
    triton = pytest.importorskip("triton")

    def none(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", none)
    for name in ("linspace", "arange"):
        whole = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, device, whole=whole: whole(*a))
    plain = doctor.reinmax
    monkeypatch.setattr(doctor, "reinmax", lambda x, given, backend: plain(x, given=given))
    assert doctor.kernels().state == f"run (triton {triton.__version__})"


def test_the_library_alone_says_its_version_and_what_a_machine_can_do(capsys, monkeypatch):
    with pytest.raises(SystemExit) as end:
        command_line.main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"{discretegrad.__version__}\n")
    assert command_line.main(["doctor"]) == 0
    assert torch.__version__ in capsys.readouterr().out
    broken = doctor.Part("fused kernels", "fail: no compiler", "Install one.", broken=True)
    monkeypatch.setattr(command_line, "parts", lambda: iter([broken]))
    assert command_line.main(["doctor"]) == 1
    assert capsys.readouterr().out.split() == [
        *("x", "fused", "kernels", "fail:", "no", "compiler", "Install", "one.")
    ]
