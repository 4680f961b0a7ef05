"""DisARM for categories: every category is a path through a tree of binary choices.

Dong et al., "Coupled Gradient Estimators for Discrete Latent Variables", NeurIPS 2021.
arXiv:2106.08056
"""

import torch
from torch import Tensor

from .._random import uniform, widest
from .._row import score_row
from .._score import Arguments, Problem, check_antithetic, check_pairs, estimate, pose, weighted
from .._tree import (
    Nodes,
    Tree,
    antithetic_leaves,
    chances,
    make_nodes,
    reaches,
    repeats_unlikely,
    to_logits,
)
from .._types import Objective, Vectorize
from ..families import FamilyLike


def disarm_tree(
    logits: Tensor,
    f: Objective,
    *,
    num_samples: int | None = None,
    tree: Tree = "balanced",
    family: FamilyLike = "categorical",
    given: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    vectorize: Vectorize = False,
) -> Tensor:
    r"""Mean of f over antithetic pairs, with the DisARM-Tree gradient for the logits.

    The categories are the leaves of a binary tree. Node i goes right with probability
    $\rho_i = \sigma(\phi_i)$, where $\phi_i$ is the log-sum-exp of the logits on its right minus
    that on its left. One uniform number per node gives two antithetic choices $b_i$ and
    $\tilde b_i$, and so two categories $z$ and $\tilde z$. With $\Delta = f(z) - f(\tilde z)$ the
    gradient for $\phi_i$ is

    $$\hat\nabla_{\phi_i} = \tfrac12 \Delta \cdot \begin{cases}
    (b_i - \tilde b_i)\, \sigma(|\phi_i|) & \text{if } i \text{ is on both paths} \\
    b_i - \rho_i & \text{if only on the path to } z \\
    -(\tilde b_i - \rho_i) & \text{if only on the path to } \tilde z \\
    0 & \text{else} \end{cases}$$

    and the chain rule takes it to the logits. It is DisARM on the independent bits of all nodes,
    averaged over the choices that neither category depends on.

    Symbols: ``num_samples / 2`` pairs; the shape of the tree is ``tree``.

    Properties: unbiased for every f, which need not be differentiable. One evaluation of f per
    sample. For two categories it is DisARM.

    Differs from the paper: any number of categories; a tree whose size is no power of two has
    shorter branches at its right end.

    Args:
        num_samples: Samples to average over, an even number; by default 2.
        tree: ``"balanced"`` halves the categories at every node; ``"stick_breaking"`` decides
            about one category after the other, from the first to the last.
        family: ``"categorical"``; for bits see ``disarm``.
        given: As for ``disarm``.

    The other arguments, the result and the errors are those of ``reinforce``.

    Example:
        >>> import torch, discretegrad
        >>> logits = torch.zeros(5, requires_grad=True)
        >>> loss = discretegrad.disarm_tree(logits, lambda z: z.argmax(-1) == 2, num_samples=200)
        >>> loss.backward()
        >>> int(logits.grad.argmax())
        2
    """
    arguments = Arguments(logits, f, num_samples, family, given, mask, generator, vectorize)
    problem = pose(ROW, arguments)
    check_pairs(problem, "leave_one_out")
    probs = problem.point.to(widest(problem.point.device))
    nodes = make_nodes(probs, tree)
    drawn = _draw_pairs(problem, nodes, tree)

    def gradient(values: Tensor) -> Tensor:
        leaves, left, right = drawn.chunk(2), *chances(nodes)
        on_path, on_other = (reaches(nodes, leaf) for leaf in leaves)
        b, b_other = (leaf >= nodes.split for leaf in leaves)
        both = (b.long() - b_other.long()) * torch.maximum(left, right)
        # b - rho, where b is 1 from the chance of going left
        of_each = [torch.where(goes_right, left, -right) for goes_right in (b, b_other)]
        weight = torch.where(
            on_path & on_other, both, torch.where(on_path, of_each[0], -of_each[1])
        )
        weight = torch.where(on_path | on_other, weight, 0)
        f_z, f_other = values.chunk(2)
        return to_logits(nodes, tree, probs, weighted((f_z - f_other) / 2, weight))

    return estimate(problem, drawn, gradient)


def _draw_pairs(problem: Problem, nodes: Nodes, tree: Tree) -> Tensor:
    if problem.given is not None:
        check_antithetic(problem, repeats_unlikely(nodes, *problem.given.chunk(2)))
        return problem.given
    shape = (problem.num_samples // 2, *nodes.right.shape)
    return antithetic_leaves(nodes, uniform(shape, nodes.right.dtype, problem.call), tree)


ROW = score_row(
    name="disarm_tree",
    label="DisARM-Tree",
    function=disarm_tree,
    families=("categorical",),
    options={"tree": "balanced"},
    min_samples=2,
    reference="Dong et al. 2021, arXiv:2106.08056",
    bibtex="""@inproceedings{dong2021coupled,
  title     = {Coupled Gradient Estimators for Discrete Latent Variables},
  author    = {Dong, Zhe and Mnih, Andriy and Tucker, George},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2021},
  eprint    = {2106.08056},
  archivePrefix = {arXiv},
}""",
)
