"""Claims of a paper held against results, by ``RULE``."""

from ..tasks.base import Claim
from ..tasks.evidence import ALPHA, Judgement, Results
from .document import Verdict

RULE = (
    "A claim is split into comparisons, most of them of two means. The p of a comparison is the "
    "chance of such a difference if the means were equal (Welch's t-test, or Student's of the "
    "differences seed by seed where both were measured along the same trainings). The claim holds "
    f"if every comparison comes out as claimed with p < {ALPHA:g}. It does not hold if one comes "
    f"out the other way with a p below {ALPHA:g} divided by the number of comparisons: with 12 of "
    f"them below {ALPHA / 12:.4f}, so that it is no accident of having looked 12 times. Otherwise "
    "it is undecided. A claim that something happens in at least one case holds if it does so in "
    "one with such a small p. Where means have no spread, where a mean is compared with a bound, "
    "such as 1 % above the optimum, and where the best of a few is asked for, the numbers alone "
    "decide, unless it says otherwise beside them."
)


def judge(claim: Claim, results: Results) -> Verdict:
    """A claim with what the results say about it."""
    votes, evidence = claim.judge(results) if results.rows else Judgement([], "No results")
    holds: bool | None = None
    if any(vote.sign < 0 and vote.p < ALPHA / len(votes) for vote in votes):
        holds = False
    elif votes and all(vote.sign > 0 and vote.p < ALPHA for vote in votes):
        holds = True
    return Verdict(claim.text, f"Section {claim.section}, {claim.place}", holds, f"{evidence}.")
