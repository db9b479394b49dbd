"""Imports go one way: what docs and reviewers rely on, checked on the source."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "vcycle"

# A module imports from its own folder or from those above it in this list; folders on one line do
# not know each other. A new folder takes its place here.
LAYERS = [
    {"schedule"},
    {"data", "models"},
    {"datasets", "config"},
    {"devices"},
    {"evaluate"},
    {"train"},
    {"report", "bench"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
# What decodes knows shapes and frames, and nothing of who asks for them.
DECODING_KNOWS = (
    "vcycle.schedule.shape",
    "vcycle.schedule.messages",
    "vcycle.data.grid",
    "vcycle.data.metadata",
)
# Plans are printed, recipes read and reports drawn without torch.
NO_TORCH = ("vcycle.schedule", "vcycle.config", "vcycle.report", "vcycle.cli")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def imports_of(name: str, *, at_import_only: bool = False) -> set[str]:
    """Full names that a module imports; ``at_import_only`` leaves out those in functions."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    nodes: list[ast.AST] = [ast.parse(path.read_text(), str(path))]
    found: set[str] = set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            module = node.module or ""
            if node.level:
                module = f"{base}.{module}".rstrip(".")
            found |= {f"{module}.{alias.name}" for alias in node.names}
        elif at_import_only and (is_function(node) or is_type_checking(node)):
            continue
        nodes.extend(ast.iter_child_nodes(node))
    return found


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def part_of(full_name: str) -> str | None:
    """The top-level part of vcycle that a full name lies in, None for the package itself."""
    pieces = full_name.split(".")
    named = len(pieces) > 1 and any(name.split(".")[1:2] == pieces[1:2] for name in MODULES)
    return pieces[1] if named else None


def layer_of(part: str) -> int:
    for number, parts in enumerate(LAYERS):
        if part in parts:
            return number
    raise AssertionError(f"vcycle.{part} has no place in the order of the architecture")


def wrong_arrow(name: str, imported: str) -> bool:
    if not imported.startswith("vcycle"):
        return False
    source, target = part_of(name), part_of(imported)
    if source is None or source == target:
        return False
    if target is None:  # `vcycle.Plan`, a way around the layers; `import vcycle` is none
        return imported != "vcycle"
    return layer_of(target) >= layer_of(source)


@pytest.mark.parametrize("name", sorted(name for name in MODULES if part_of(name)))
def test_imports_go_up_the_list(name: str) -> None:
    part = part_of(name)
    assert part is not None
    layer_of(part)
    wrong = sorted(imported for imported in imports_of(name) if wrong_arrow(name, imported))
    assert not wrong, f"{name} imports {wrong}"


@pytest.mark.parametrize("name", sorted(name for name in MODULES if part_of(name) == "schedule"))
def test_schedule_needs_only_the_standard_library(name: str) -> None:
    roots = {imported.partition(".")[0] for imported in imports_of(name)}
    assert roots <= set(sys.stdlib_module_names) | {"vcycle"}


def test_no_import_leads_back() -> None:
    graph = {
        name: {each if each in MODULES else each.rpartition(".")[0] for each in imports_of(name)}
        for name in MODULES
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.startswith("vcycle.data.decode")))
def test_decoding_knows_only_shapes_and_frames(name: str) -> None:
    ours = {each for each in imports_of(name) if each.startswith("vcycle.")}
    known = ("vcycle.data.decode", *DECODING_KNOWS)
    assert not [each for each in ours if not each.startswith(known)]


def reached_from(start: str) -> dict[str, str]:
    """Every import that importing ``start`` runs, with the module of ours that does it."""
    reached: dict[str, str] = {}
    todo = [start]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        imported = imports_of(name, at_import_only=True)
        reached.update(dict.fromkeys(imported, name))
        for each in {name, *imported}:
            pieces = each.split(".")
            ours = [".".join(pieces[:end]) for end in range(1, len(pieces) + 1)]
            todo += [package for package in ours if package in MODULES]
    return reached


@pytest.mark.parametrize("start", [n for n in sorted(MODULES) if n.startswith(NO_TORCH)])
def test_plans_and_reports_import_no_torch(start: str) -> None:
    heavy = ("torch", "torchmetrics", "lightning_fabric", "av")
    reached = {
        name: via for name, via in reached_from(start).items() if name.split(".")[0] in heavy
    }
    assert not reached, f"importing {start} runs {reached}"


def test_lightning_fabric_is_imported_in_one_place() -> None:
    importing = {
        name
        for name in MODULES
        if any(each.startswith("lightning_fabric") for each in imports_of(name))
    }
    assert importing == {"vcycle.devices.fabric"}


def test_training_starts_without_what_fabric_would_take_along() -> None:
    """torchmetrics takes scipy and transformers along. Nothing hides it afterwards."""
    code = (
        "import sys\n"
        "import vcycle.train.run\n"
        "print(*{'torchmetrics', 'scipy', 'transformers'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize(
    ("name", "imported", "wrong"),
    [
        ("vcycle.schedule.plan", "vcycle.schedule.shape.Shape", False),
        ("vcycle.schedule.plan", "vcycle.data.decode.video", True),
        ("vcycle.schedule.plan", "math", False),
        ("vcycle.data.grid", "vcycle.models.norm", True),
        ("vcycle.models.norm", "vcycle.data.grid", True),
        ("vcycle.config.run", "vcycle.schedule.plan.Plan", False),
        ("vcycle.config.run", "vcycle.Plan", True),
    ],
)
def test_the_rule_itself(name: str, imported: str, wrong: bool) -> None:
    assert wrong_arrow(name, imported) is wrong
