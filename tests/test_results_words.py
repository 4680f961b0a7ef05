"""Figures in the sentences of pages that people wrote are those of the stored runs."""

from collections import Counter
from statistics import fmean, median

import pytest
from scipy.stats import fisher_exact

from benchmark_cases import collapses, files, lines_of, on_the_paper, pages, sizes, stored
from discretegrad_lab.tasks.statistics import compare, summarise


def trained(rows):
    return summarise([row.metrics["train"] for row in rows])


def said(comparison, sign=1):
    return f"{sign * comparison.difference:.1f} ± {comparison.half:.1f}"


def test_words_on_the_temperatures_are_true():
    page = on_the_paper()["temperature"]
    best = {"reinmax": [], "st": []}
    for key, ends in best.items():
        for size in ("4x24", "8x16", "16x12", "64x8"):
            categories = int(size.partition("x")[0])
            searched = stored.read(stored.TEMPERATURES).where(
                estimator=key, categories=categories, tau=2.0
            )
            tuned = stored.read(f"vae-{size}").where(estimator=key)
            assert {row.config["tau"] for row in tuned} == {1.5}
            ends += [[fmean(row.metrics["train"] for row in rows) for rows in (searched, tuned)]]
    assert all(tuned < searched for ends in best.values() for searched, tuned in ends)
    at_two, at_choice = ([f"{x:.2f}" for x in ends] for ends in zip(*best["reinmax"], strict=True))
    assert f"{', '.join(at_two[:3])} and {at_two[3]} (4x24, 8x16, 16x12, 64x8)" in page
    assert f"for ReinMax ({', '.join(at_choice)} over ten seeds)" in page


def test_words_on_a_temperature_of_one_are_true():
    results, costs = stored.read(stored.BASELINES), []
    for size in results.settings(("categories", "latents")):
        part = results.part(estimator="reinmax", **size)
        losses = {
            tau: fmean(x.metrics["train"] for x in part.where(tau=tau))
            for tau in (1.0, 1.3, 1.5)
            if part.where(tau=tau)
        }
        assert len(losses) == 2
        costs.append(losses.pop(1.0) - losses.popitem()[1])
    least, *_, next_to_most, most = sorted(costs)
    assert len(costs) == 6
    rule = f"at 1 the six VAEs ended {least:.0f} to {most:.0f} nats worse"
    assert rule in " ".join((files.ROOT / "README.md").read_text().split())
    page = " ".join((pages.DOCS / "choosing-an-estimator.md").read_text().split())
    assert f"cost {least:.1f} to {next_to_most:.1f} nats" in page
    assert f"in the smallest of them {most:.0f}." in page


def test_words_on_a_hundred_seeds_are_true():
    results = stored.read(stored.COLLAPSE)
    ends = {
        key: [x.metrics["train"] for x in results.where(estimator=key)]
        for key in results.estimators()
    }
    assert sorted(ends, key=lambda key: median(ends[key]))[0] == "reinmax"
    assert sorted(ends, key=lambda key: fmean(ends[key]))[3] == "reinmax"
    fallen = {
        row.config["seed"]
        for row, _ in collapses.collapses(results, results.where(estimator="reinmax"))
    }
    assert fallen.isdisjoint(range(10))


def test_words_on_what_decides_a_collapse_are_true():
    page, results = on_the_paper()["collapse"], stored.read(stored.WEIGHTS)
    fallen = collapses.collapses(results, results.rows)
    by_weights = Counter(row.config["weights_seed"] for row, _ in fallen)
    (first, all_of_it), (second, many), (third, some), *_ = by_weights.most_common()
    total = all_of_it + many + some
    assert f"Of the {len(fallen)} runs that collapsed {total} have one of three initial" in page
    assert f"those of the seeds {first}, {second} and {third}; with twelve of the twenty" in page
    assert (len(by_weights), all_of_it) == (20 - 12, 20)
    each = Counter(row.config["seed"] for row, _ in fallen)
    assert (len(each), min(each.values()), max(each.values())) == (20, 1, 3)
    back = sum(epoch is not None for row, epoch in fallen if row.config["weights_seed"] == first)
    assert f"From the weights of seed {second}, {many} of 20 runs collapse; from" in page
    assert f"of seed {first} all do, and {back} come back by epoch 20." in page


def test_words_on_the_temperature_of_a_collapse_are_true():
    page, results = on_the_paper()["collapse"], stored.read(stored.FIRST_TEMPERATURES)

    def counts(estimator, *taus):
        rows = [row for tau in taus for row in results.where(estimator=estimator, tau=tau)]
        return len(collapses.collapses(results, rows)), len(rows)

    small, between = counts("reinmax", 0.5), counts("reinmax", 0.7, 1.0)
    assert (small, between) == ((6, 50), (0, 100))
    assert fisher_exact([[6, 44], [0, 100]])[1] == pytest.approx(0.001, rel=0.2)
    assert (counts("st", 0.5), counts("st", 0.7, 1.0, 1.3, 2.0)) == ((0, 50), (22, 200))
    assert fisher_exact([[0, 50], [22, 178]])[1] == pytest.approx(0.01, rel=0.05)
    assert "6 of 50 against none of 100 at 0.7 and 1" in page
    assert "against 22 of 200 at the others" in page
    ends = {
        tau: median(x.metrics["train"] for x in results.where(estimator="reinmax", tau=tau))
        for tau in (0.5, 0.7, 1.3, 2.0)
    }
    low, next_to_low, *high = (f"{x:.0f}" for x in ends.values())
    assert f"ReinMax is at {low} and {next_to_low} nats" in page
    assert set(high) == {"133"}


def test_words_on_tf32_are_true():
    assert {row.config["seed"] for row in stored.read(stored.PRECISION).rows} == set(range(10, 30))
    cells = lines_of(sizes.precision_table())
    for line in ("ST, train", "ST, test", "ReinMax, train", "ReinMax, test"):
        changed, *above = ([float(x) for x in cell.split(" ± ")] for cell in cells[line][2:])
        assert abs(changed[0]) < changed[1]
        # with TF32, in float32
        outside = [difference > half for difference, half in above]
        assert outside == [line.startswith("ST"), False]
        assert all(difference > 0 for difference, _ in above)


def test_words_on_samples_in_the_small_model_are_true():
    page, results = on_the_paper()["temperature-of-1"], stored.read(stored.SMALL_SAMPLES)

    def rows(estimator, **fields):
        return [
            row
            for row in results.where(estimator=estimator)
            if all(row.config.get(name) == value for name, value in fields.items())
        ]

    def less(first, second, metric="train"):
        ends = ([row.metrics[metric] for row in part] for part in (first, second))
        return compare(*map(summarise, ends))

    sixteen = {tau: rows("reinmax", tau=tau, samples=16) for tau in (1.0, 1.3)}
    one = {tau: rows("reinmax", tau=tau, samples=None) for tau in (1.0, 1.3)}
    rloo, two = (rows("leave-one-out", samples=count) for count in (16, 2))
    exact = results.where(estimator="exact")
    for part in (*sixteen.values(), *one.values(), rloo, two, exact):
        assert len(part) == 10
    at_one = less(sixteen[1.0], rloo), less(sixteen[1.0], exact)
    assert f"ends {said(at_one[0])} nats above RLOO on train and {said(at_one[1])} above" in page
    assert f"level with the exact gradient ({said(less(rloo, exact))})" in page
    tuned = less(sixteen[1.3], rloo), less(sixteen[1.3], exact)
    assert f"{said(tuned[0])} nats against RLOO and {said(tuned[1])} against the exact" in page
    tested = less(rloo, sixteen[1.3], "test"), less(exact, sixteen[1.3], "test")
    assert f"better than both, by {said(tested[0])} and {said(tested[1])}" in page
    assert f"at τ = 1.3, by {said(less(one[1.3], two))} nats" in page
    assert f"on test {said(less(two, one[1.3], 'test'))} behind" in page

    def turned(part):
        curves = [[loss for _, loss in results.curve(row, "train")] for row in part]
        return sum(curve[-1] >= min(curve) + 2 for curve in curves)

    assert [turned(x) for x in (one[1.0], sixteen[1.0], one[1.3], sixteen[1.3])] == [10, 1, 0, 0]
    middle, end = (
        fmean(dict(results.curve(row, "train"))[epoch] for row in one[1.0]) for epoch in (40, 160)
    )
    noise = end - trained(sixteen[1.0]).mean
    assert f"at {middle:.0f} nats at epoch 40 and at {end:.0f} at the end, {noise:.0f} more" in page
    assert f"RLOO with two samples ends at {trained(two).mean:.0f}." in page


def test_words_on_the_accuracy_at_each_temperature_are_true():
    page, results = on_the_paper()["temperature-of-1"], stored.read(stored.BY_TEMPERATURE)

    def curve(along, tau, metric):
        part = results.where(along=along, tau=tau)
        assert len(part) == 5
        epochs = [epoch for epoch, _ in results.curve(part[0], metric)]
        return {x: fmean(dict(results.curve(row, metric))[x] for row in part) for x in epochs}

    alike = {tau: curve("reinmax", tau, "gradient_cosine") for tau in (1.0, 1.3, 2.0)}
    for epoch in alike[1.0]:
        best = max(alike, key=lambda tau: alike[tau][epoch])
        assert (best == 1.0) == (epoch >= 2)
    ends = [f"{values[160]:.2f}" for values in alike.values()]
    assert f"a cosine of {ends[0]} with the exact one, against {ends[1]} at τ = 1.3 and" in page
    assert f"{ends[2]} at τ = 2." in page
    own = {tau: curve("own", tau, "gradient_cosine") for tau in (1.0, 1.3, 2.0)}
    assert max(own, key=lambda tau: own[tau][2]) == 1.0 == min(own, key=lambda tau: own[tau][160])
    bias = curve("own", 2.0, "gradient_bias").values()
    assert 0.95 < min(bias) < max(bias) < 1.15
    losses = [trained(results.where(along="own", tau=tau)).mean for tau in (1.0, 2.0)]
    assert f"ends at {losses[1]:.1f} nats, {losses[0] - losses[1]:.0f} better than" in page


def test_words_on_the_search_at_8x4_are_true():
    with (stored.RESULTS / "vae-search-8x4" / "runs.csv").open(encoding="utf-8") as file:
        assert sum(1 for _ in file) == 865
    results = stored.read("vae-search-8x4")
    ended = [row for row in results.rows if row.state == "finished"]
    best = {}
    for row in ended:
        key = tuple(row.config[x] for x in ("optimiser", "learning_rate", "tau"))
        best.setdefault(row.config["estimator"], {}).setdefault(key, []).append(
            row.metrics["train"]
        )
    chosen = {name: min(x, key=lambda key, x=x: fmean(x[key])) for name, x in best.items()}
    assert all(tau <= 1.5 for _, _, tau in chosen.values())
    assert {name for name, (_, rate, _) in chosen.items() if rate == 0.0003} == {
        *("reinmax", "gr-mck")
    }
    page = on_the_paper()["search"]
    assert "temperatures are within the paper's grid, and two of the five estimators" in page
    published = results.where(estimator="stgs", optimiser="adam", learning_rate=0.0003, tau=0.5)
    assert {(row.state, row.epoch) for row in published} == {("dropped", 40)}
