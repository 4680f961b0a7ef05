"""Images that stored models reconstruct."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .config import Vae
from .data import Images, load_mnist
from .estimators import ESTIMATORS
from .recipes import Recipe
from .store import Store
from .tasks.vae import VaeTask

_SHOWN = 12


def finished(recipe: Recipe, store: Store, damaged: list[str]) -> list[Vae]:
    """One finished VAE of each estimator that has any, with the lowest seed that can be read.

    ``damaged`` takes the reasons why others cannot.
    """
    found: dict[str, Vae] = {}
    for run in sorted(recipe.runs(), key=lambda one: one.seed):
        if isinstance(run, Vae) and run.estimator not in found:
            status = store.status(run)
            if status.state == "finished":
                found[run.estimator] = run
            elif status.reason:
                damaged.append(status.reason)
    return [found[name] for name in ESTIMATORS if name in found]


def draw_reconstructions(
    runs: Sequence[Vae],
    store: Store,
    path: Path,
    data: Path | None = None,
    images: Images | None = None,
) -> None:
    """Test images, and what each model makes of one sample of their codes, as a PNG file.

    Args:
        runs: Finished ones, see ``finished``.
        store: Where they are.
        path: The file to write.
        data: The directory of the data sets.
        images: Instead of those.
    """
    from .plots import picture_grid

    images = load_mnist(data) if images is None else images
    shown = images.test[:_SHOWN]
    rows: list[tuple[str, Tensor]] = []
    for run in runs:
        task = VaeTask([run], torch.device("cpu"), images=images)
        state = store.load(run).state
        with torch.no_grad():
            for name, parameter in task.parameters.items():
                parameter[0] = state[f"parameters/{name}"]
        originals, means = task.reconstructions(0, shown)
        if not rows:
            rows.append(("original", originals.unflatten(-1, (28, 28))))
        rows.append((ESTIMATORS[run.estimator].title, means.unflatten(-1, (28, 28))))
    picture_grid(rows, path, group=len(rows))
