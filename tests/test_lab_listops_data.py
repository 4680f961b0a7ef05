"""ListOps without its model: expressions, their grammar, files, batches, trees and pictures.

The tests of random numbers are seeded, so they always give the same answer. Had the seeds been
random, a right generator would fail somewhere in this file with a chance of at most FAMILY_WISE,
since each p-value is held against FAMILY_WISE / P_VALUES.
"""

import gzip
import hashlib
import itertools
import os
import re
import statistics
from collections import Counter
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discretegrad_lab.tasks.data import DataError
from discretegrad_lab.tasks.listops import data, drawings, trees
from discretegrad_lab.tasks.listops.expressions import (
    ANY,
    OPERATORS,
    PUBLISHED,
    Grammar,
    Place,
    draw,
    generate,
    gold_spans,
    parse,
    published,
)
from discretegrad_lab.tasks.listops.measures import SHOWN

FAMILY_WISE = 1e-6
P_VALUES = 40

# an expression as a digit or as (operator, arguments), and everything about it written again


def expressions(arguments=5):
    digits = st.integers(0, 9)
    return st.recursive(
        digits,
        lambda inner: st.tuples(
            st.sampled_from(sorted(OPERATORS)), st.lists(inner, min_size=2, max_size=arguments)
        ),
        max_leaves=30,
    )


def tree_of(tokens):
    """The expression of tokens, by recursive descent."""
    rest = list(tokens)

    def one():
        token = rest.pop(0)
        if token != "[":
            return int(token)
        operator, arguments = rest.pop(0), []
        while rest[0] != "]":
            arguments.append(one())
        rest.pop(0)
        return operator, arguments

    tree = one()
    assert not rest
    return tree


def value_of(tree):
    if isinstance(tree, int):
        return tree
    values = [value_of(x) for x in tree[1]]
    return {
        "max": max(values),
        "min": min(values),
        "med": int(statistics.median(values)),
        "sm": sum(values) % 10,
    }[tree[0]]


def levels_of(tree):
    return 1 if isinstance(tree, int) else 1 + max(map(levels_of, tree[1]))


def binary(tree):
    """The right tree as pairs, as the published generator makes it, with ``[MAX`` as one leaf."""
    if isinstance(tree, int):
        return str(tree)
    pairs = f"[{tree[0].upper()}"
    for argument in tree[1]:
        pairs = (pairs, binary(argument))
    return pairs, "]"


def with_parentheses(pairs):
    return pairs if isinstance(pairs, str) else f"( {' '.join(map(with_parentheses, pairs))} )"


def leaves(pairs):
    return [pairs] if isinstance(pairs, str) else [x for part in pairs for x in leaves(part)]


def spans_of(pairs, start=0):
    """The spans of pairs of strings; ``[MAX`` has two tokens, which are a span too."""
    width = sum(1 + x[:-1].startswith("[") for x in leaves(pairs))
    if isinstance(pairs, str):
        return [(start, start + 2)] if width == 2 else []
    left = sum(1 + x[:-1].startswith("[") for x in leaves(pairs[0]))
    inner = spans_of(pairs[0], start) + spans_of(pairs[1], start + left)
    return [*inner, (start, start + width)]


# reading


@settings(deadline=None, max_examples=150)
@given(expressions(), st.sampled_from(["published", "plain", "glued", "spaced"]))
def test_what_is_written_is_read(tree, form):
    right = with_parentheses(binary(tree))
    plain = right.replace("( ", "").replace(" )", "")
    text = {
        "published": right,
        "plain": plain,
        "glued": plain.replace(" ]", "]").replace("] ", "]").lower(),
        "spaced": re.sub(r"([\[\]])", r" \1  ", plain) + " ",
    }[form]
    expression = parse(text)
    assert published(expression.tokens) == right
    assert tree_of(expression.tokens) == tree
    assert (expression.value, expression.depth) == (value_of(tree), levels_of(tree))
    for (start, end), value in expression.lists.items():
        assert value == value_of(tree_of(expression.tokens[start:end]))
    assert len(expression.lists) == expression.tokens.count("[")
    spans = gold_spans(expression.tokens)
    assert sorted(spans) == sorted(spans_of(binary(tree)))
    assert len(spans) == len(set(spans)) == len(expression.tokens) - 1


NO_EXPRESSIONS = {
    "": "expected an expression at column 1 of the expression, got nothing",
    "[MAX 1 2": "expected ] for each [ at column 9 of the expression, got 1 without it",
    "[MAX 1 2]]": "expected the end after a whole expression at column 10 .* got ']'",
    "1 2": "expected the end after a whole expression at column 3 .* got '2'",
    "]": "expected [ before ] at column 1 ",
    "[MUX 1 2]": "expected an operator (max, min, med, sm) after [ at column 2 .* got 'mux'",
    "MAX 1 2": "expected [ before max at column 1 ",
    "[MAX 1 MIN]": "expected [ before min at column 8 ",
    "[MAX 1 12]": "expected a digit, a bracket or an operator at column 8 .* got '12'",
    "[MAX 1 ?]": "expected a digit, a bracket or an operator at column 8 .* got '?'",
    "[MAX 1]": "expected 2 to 5 arguments of max at column 7 .* got 1",
    "[SM 1 2 3 4 5 6]": "expected 2 to 5 arguments of sm at column 16 .* got 6",
    "( ( ( [MAX 1 ) 2 ] )": "expected ')' by the tree of the expression at column 18 .* got ']'",
    "( ( [MAX 1 2 ) ] )": "expected '(' by the tree of the expression at column 5 .* got '['",
    "( ( ( [MAX 1 ) 2 ) ]": "expected ')' by the tree .* at column 21 .* got the end",
    "( ( ( [MAX 1 ) 2 ) ] ) )": "expected the end by the tree .* at column 24 .* got ')'",
}


@pytest.mark.parametrize("text", NO_EXPRESSIONS)
def test_what_is_no_expression_is_refused(text):
    pattern = ".*".join(map(re.escape, NO_EXPRESSIONS[text].split(".*")))
    with pytest.raises(DataError, match=f"^{pattern}.*; correct the expression or take it out$"):
        parse(text)


def test_the_grammar_has_limits():
    text = "[MAX 1 [MIN 2 3]]"
    assert parse(text, Grammar(depth=3, arguments=2, shortest=9, longest=9)).depth == 3
    for limits, message in (
        (Grammar(depth=2), "expected at most 2 levels at column 5 of line 7 of a.tsv, got 3"),
        (Grammar(longest=8), "of 1 to 8 tokens at column 5 of line 7 of a.tsv, got 9 tokens"),
        (Grammar(shortest=10), "expected an expression of 10 to 10000 tokens"),
    ):
        with pytest.raises(DataError, match=message):
            parse(text, limits, Place("a.tsv", 7, 5))
    deep = "[MAX 1 " * 99 + "1" + "]" * 99
    assert parse(deep, ANY).depth == 100
    for wrong in ({"depth": 0}, {"depth": 1e2}, {"arguments": 1}, {"shortest": 5, "longest": 4}):
        with pytest.raises(ValueError, match=f"as {list(wrong)[-1]} of a grammar, got"):
            Grammar(**wrong)


# the grammar


def p_values_of(drawn, grammar):
    """Of everything that the published generator decides at random."""
    lists, operators, counts, digits = Counter(), Counter(), Counter(), Counter()

    def look(tree, level):
        if level < grammar.depth:
            lists[not isinstance(tree, int)] += 1
        if isinstance(tree, int):
            digits[tree] += 1
            return
        operators[tree[0]] += 1
        counts[len(tree[1])] += 1
        for argument in tree[1]:
            look(argument, level + 1)

    for tokens in drawn:
        look(tree_of(tokens), 1)
    yield stats.binomtest(lists[True], lists.total(), 0.25).pvalue
    for counter, values in (
        (operators, OPERATORS),
        (counts, range(2, grammar.arguments + 1)),
        (digits, range(10)),
    ):
        assert set(counter) == set(values)
        yield stats.chisquare([counter[x] for x in values]).pvalue
    # the mean length, from the deepest level upwards
    mean = 1.0
    for _ in range(grammar.depth - 1):
        mean = 0.75 + 0.25 * (3 + (2 + grammar.arguments) / 2 * mean)
    lengths = torch.tensor([len(x) for x in drawn], dtype=torch.float64)
    yield 2 * stats.norm.sf(abs(lengths.mean() - mean) * len(drawn) ** 0.5 / lengths.std())


@pytest.mark.parametrize("grammar", [PUBLISHED, Grammar(depth=3, arguments=8)], ids=str)
def test_draws_have_the_published_distribution(grammar):
    uniform = Random(1).random
    drawn = [draw(uniform, grammar) for _ in range(20_000)]
    assert max(parse(" ".join(x), grammar).depth for x in drawn) <= grammar.depth
    p_values = list(p_values_of(drawn, grammar))
    assert min(p_values) > FAMILY_WISE / P_VALUES, p_values


def test_limits_leave_out_what_is_drawn_beyond_them():
    """So the others keep their distribution."""
    limits = Grammar(shortest=6, longest=30)
    every, limited = ([draw(Random(i).random, x) for i in range(2000)] for x in (PUBLISHED, limits))
    assert limited == [x if 6 <= len(x) <= 30 else None for x in every]


def test_expressions_come_once():
    first = list(itertools.islice(generate(Random(3).random), 300))
    uniform = Random(3).random
    drawn = (draw(uniform) for _ in itertools.count())
    assert list(dict.fromkeys(itertools.islice(drawn, 3000)))[:300] == first
    with pytest.raises(ValueError, match="got 10 different ones and nothing new in 20000 draws"):
        list(generate(Random(3).random, Grammar(depth=1)))


def test_a_grammar_that_explodes_is_cut_off():
    """With ten arguments an expression has more than one list for each, on average."""
    grammar = Grammar(depth=100, arguments=10, shortest=50, longest=100)
    for tokens in itertools.islice(generate(Random(0).random, grammar), 50):
        parse(" ".join(tokens), grammar)


# data sets


def digest(listops):
    numbers = [x for part in listops for tensor in part for x in tensor.flatten().tolist()]
    return hashlib.sha256(repr(numbers).encode()).hexdigest()[:16]


def rows(examples):
    return [data.decode(x) for x in examples.tokens]


def test_generated_data_are_labelled_split_and_frozen():
    listops = data.generate_listops(0, (300, 40, 50))
    assert digest(listops) == "0bf9a7e0c5482ccf"
    train, valid, test, long_test = map(rows, listops)
    assert [len(x) for x in (train, valid, test)] == [300, 40, 50]
    assert max(map(len, train + valid + test)) < data.LIMIT <= max(map(len, long_test))
    assert set(test) < set(long_test)
    assert len(set(train + valid + long_test)) == 340 + len(long_test)
    for part, texts in zip(listops, (train, valid, test, long_test), strict=True):
        assert part.labels.tolist() == [value_of(tree_of(x)) for x in texts]
        assert part.lengths.tolist() == [len(x) for x in texts]
        assert data.depths(part.tokens).tolist() == [levels_of(tree_of(x)) for x in texts]
        assert {x.dtype for x in part} == {torch.int64}
        assert part.tokens.shape[1] == part.lengths.max()
    assert digest(data.generate_listops(1, (300, 40, 50))) != digest(listops)
    short = data.generate_listops(0, (30, 4, 5), depth=3, arguments=3, shortest=5, longest=20)
    assert set(rows(short.test)) == set(rows(short.long_test))
    assert all(5 <= len(x) <= 20 for x in rows(short.train))


@pytest.mark.parametrize(
    ("seed", "counts", "options", "message"),
    [
        (0, (1, 1), {}, "expected three positive counts"),
        (0, (1, 0, 1), {}, "expected three positive counts"),
        (-1, (1, 1, 1), {}, "expected a whole number from 0 on as seed, got -1"),
        (0, (5, 5, 5), {"depth": 1}, "expected more expressions, got 10 different ones"),
        (0, (5, 5, 5), {"longest": 0}, "as longest of a grammar, got 0"),
        (0, (5, 5, 5), {"shortest": 100}, "fewer than 100 tokens as the shortest"),
    ],
)
def test_data_that_cannot_be_generated_are_refused(seed, counts, options, message):
    with pytest.raises(ValueError, match=message):
        data.generate_listops(seed, counts, **options)


GOOD = "3\t( ( ( [MAX 1 ) 3 ) ] )\n0\t[sm 5 5]\r\n7\t7\n"
BAD_LINES = {
    "unknown token": ("5\t[MAX 5 x]", "at column 10 of line 4 of {}, got 'x'"),
    "brackets": ("5\t[MAX 5 4", "expected ] for each [ at column 11 of line 4 of {}"),
    "arguments": ("5\t[MAX 5]", "2 to 5 arguments of max at column 9 of line 4 of {}, got 1"),
    "too long": (f"8\t[SM {'[MAX 1 2] ' * 4}]", "1 to 20 tokens .* line 4 of {}, got 23 tokens"),
    "too deep": ("1\t" + "[MAX 1 " * 4 + "1" + "]" * 4, "at most 4 levels .* line 4 of {}, got 5"),
    "wrong value": ("4\t[MAX 5 4]", "the value 5 at the beginning of line 4 of {}, got 4"),
    "no value": ("[MAX 5 4]", "a digit, a tab and an expression in line 4 of {}, got '\\[MAX"),
    "no digit": ("10\t[MAX 5 4]", "a digit, a tab and an expression in line 4 of {}, got '10"),
    "nothing": ("", "a digit, a tab and an expression in line 4 of {}, got ''"),
    "no text": ("4\t\N{SNOWMAN}", "ASCII characters in line 4 of {}, got the byte 0xe2"),
}


@pytest.mark.parametrize("wrong", BAD_LINES)
def test_a_wrong_line_is_named_and_nothing_is_read(tmp_path, wrong):
    line, message = BAD_LINES[wrong]
    for name in ("train.tsv", "valid.tsv", "test.tsv"):
        (tmp_path / name).write_bytes(GOOD.encode())
    limits = Grammar(depth=4, longest=20)
    listops = data.load_files(tmp_path, limits)
    assert listops.train.labels.tolist() == [3, 0, 7]
    assert rows(listops.valid)[1] == ("[", "sm", "5", "5", "]")
    assert listops.test.lengths.tolist() == [5, 5, 1]
    path = tmp_path / "valid.tsv"
    path.write_bytes(f"{GOOD}{line}\n{GOOD}".encode())
    pattern = re.sub(r"[\[\]](?!MAX)", r"\\\g<0>", message).format(re.escape(str(path)))
    with pytest.raises(DataError, match=pattern) as error:
        data.load_files(tmp_path, limits)
    assert "\n" not in str(error.value)
    assert re.search("; correct the (line|expression) or take it out$", str(error.value))


def test_files_that_are_empty_or_missing_are_named(tmp_path):
    (tmp_path / "train.tsv").write_text("")
    with pytest.raises(DataError, match=r"tab and an expression in .*train\.tsv, got an empty fi"):
        data.load_files(tmp_path)
    (tmp_path / "train.tsv").write_text(GOOD)
    with pytest.raises(DataError, match=r"expected .*valid\.tsv .*No such file.*; put it there"):
        data.load_files(tmp_path)
    # by default there is the limit of the released programs
    inner = f"[SM {'[SM 1 1 1 1 1] ' * 5}]"
    (tmp_path / "valid.tsv").write_text(f"{GOOD}5\t{inner}\n5\t[SM {f'{inner} ' * 5}]\n")
    with pytest.raises(
        DataError, match=r"1 to 99 tokens .* line 5 of .*valid\.tsv, got 218 tokens"
    ):
        data.load_files(tmp_path)


def test_long_expressions_are_left_out_if_one_says_so(tmp_path):
    inner = f"[SM {'[SM 1 1 1 1 1] ' * 5}]"
    long = f"5\t[SM {f'{inner} ' * 5}]\n"
    for name in ("train.tsv", "valid.tsv", "test.tsv"):
        (tmp_path / name).write_text(long + GOOD)
    listops = data.load_files(tmp_path, leave_out_long=True)
    for part in listops[:3]:
        assert part.labels.tolist() == [3, 0, 7]
    assert listops.long_test.lengths.tolist() == [218, 5, 5, 1]
    (tmp_path / "valid.tsv").write_text(long)
    with pytest.raises(DataError, match=r"fewer than 100 tokens in .*valid\.tsv, got only longer"):
        data.load_files(tmp_path, leave_out_long=True)


# batches


def lengths(count=1003):
    return torch.randint(1, 100, (count,), generator=torch.Generator().manual_seed(5))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_batches_have_every_example_once_and_one_width():
    sizes, state = lengths(), torch.get_rng_state()
    batches = data.buckets(sizes, 16, seeded(0))
    assert sorted(torch.cat(batches).tolist()) == list(range(1003))
    assert sorted(map(len, batches)) == [1003 % 16] + [16] * (1003 // 16)
    assert max(sizes[min(batches, key=len)]) > data.WIDTHS[-2]
    widths = [{data.padded_length(int(x)) for x in sizes[batch]} for batch in batches]
    # a width ends within a batch once at most
    assert sum(len(x) > 1 for x in widths) <= len(data.WIDTHS) - 1
    assert [max(x) for x in widths] != sorted(max(x) for x in widths)
    again, other = data.buckets(sizes, 16, seeded(0)), data.buckets(sizes, 16, seeded(1))
    assert all(map(torch.equal, batches, again))
    assert not all(map(torch.equal, batches, other))
    assert torch.equal(torch.get_rng_state(), state)


def test_members_with_one_order_have_one_width_at_a_time():
    sizes = lengths()
    members = [data.buckets(sizes, 16, seeded(i), order=seeded(9)) for i in range(4)]
    for batches in zip(*members, strict=True):
        assert len({data.padded_length(int(sizes[x].max())) for x in batches}) == 1
    assert len({tuple(x[0].tolist()) for x in members}) == 4


def test_one_width_gives_uniformly_random_batches():
    sizes = torch.tensor([1, 1, 50, 50])
    pairs = Counter()
    for seed in range(3000):
        batches = data.buckets(sizes, 2, seeded(seed), widths=(99,))
        pairs[frozenset(batches[0].tolist())] += 1
    assert len(pairs) == 6
    assert stats.chisquare(list(pairs.values())).pvalue > FAMILY_WISE / P_VALUES
    together = {frozenset(x.tolist()) for x in data.buckets(sizes, 2, seeded(0))}
    assert together == {frozenset({0, 1}), frozenset({2, 3})}


def test_batches_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="expected at most 99 tokens, got 100; give larger widths"):
        data.buckets(torch.tensor([5, 100]), 2, seeded(0))
    assert len(data.buckets(torch.tensor([5, 2000]), 2, seeded(0), widths=data.LONG_WIDTHS)) == 1
    for sizes, batch in ((torch.tensor([5]), 0), (torch.tensor([], dtype=torch.long), 4)):
        with pytest.raises(ValueError, match="expected a positive number of examples"):
            data.buckets(sizes, batch, seeded(0))


@pytest.mark.gpu
def test_batches_on_a_gpu_are_those_of_the_cpu():
    sizes = lengths()
    ours, theirs = (data.buckets(x, 16, seeded(0)) for x in (sizes, sizes.cuda()))
    assert {x.device.type for x in theirs} == {"cuda"}
    assert all(torch.equal(x, y.cpu()) for x, y in zip(ours, theirs, strict=True))
    on_device = data.buckets(sizes.cuda(), 16, torch.Generator("cuda").manual_seed(0))
    assert sorted(torch.cat(on_device).tolist()) == list(range(1003))


def test_files_are_checked_line_by_line_once(monkeypatch):
    """Each of several stacks reads them; other contents are other data."""
    contents = {data.TRAIN: gzip.compress(b"3\t[MAX 1 3]\n"), data.VALID: b"5\t5\n"}
    contents[data.TEST] = b"7\t[SM 3 4]\n"
    names = []
    whole = data.read_lines
    monkeypatch.setattr(data, "read_file", lambda data_set, name, place: contents[name])
    monkeypatch.setattr(data, "read_lines", lambda x, name: names.append(name) or whole(x, name))
    data._parse_real.cache_clear()
    assert data.load_listops().test.labels.tolist() == [7]
    assert data.load_listops() is data.load_listops()
    assert names == [data.TRAIN, data.VALID, data.TEST]
    contents[data.TEST] = b"8\t[SM 3 4]\n"
    with pytest.raises(ValueError, match=r"expected the value 7 .* line 1 of test.tsv, got 8"):
        data.load_listops()
    contents[data.TEST] = b"9\t[SM 5 4]\n"
    assert data.load_listops().test.labels.tolist() == [9]
    data._parse_real.cache_clear()


# trees


def pairs_of(merges):
    """The tree of merges as pairs of leaves."""
    parts = [str(i) for i in range(len(merges) + 1)]
    for index in merges:
        parts[index : index + 2] = [(parts[index], parts[index + 1])]
    return parts[0]


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 30), st.integers(0, 1000))
def test_merges_make_spans(length, seed):
    merges = trees.random_merges(length, Random(seed).random)
    assert sorted(trees.merged_spans(merges)) == sorted(spans_of(pairs_of(merges)))
    left, right = (
        trees.merged_spans(x(length)) for x in (trees.left_branching, trees.right_branching)
    )
    assert left == [(0, end) for end in range(2, length + 1)]
    assert right == [(start, length) for start in range(length - 2, -1, -1)]
    for wrong in (-1, length - 1):
        with pytest.raises(ValueError, match=f"expected merges from 0 to {length - 2} with"):
            trees.merged_spans([wrong] + [0] * (length - 2))


def gold_merges(tokens):
    """The merges of the right tree: any order in which children come before parents will do."""
    merges, edges = [], list(range(len(tokens) + 1))
    for start, end in sorted(gold_spans(tokens), key=lambda x: x[1] - x[0]):
        index = edges.index(start)
        assert edges[index + 2] == end
        del edges[index + 1]
        merges.append(index)
    return merges


def test_scores_by_hand():
    nested = parse("[MAX 1 [MIN 2 3] ]").tokens
    flat, digit = parse("[MED 1 2 3]").tokens, ("7",)
    assert gold_spans(nested) == [(0, 2), (0, 3), (3, 5), (3, 6), (3, 7), (3, 8), (0, 8), (0, 9)]
    every = [nested, flat, digit]
    right = trees.score(every, [gold_merges(x) for x in every])
    assert right == trees.TreeScores(2, 1.0, 1.0, 1.0)
    # (0, 2), (0, 3), (0, 8), (0, 9) of eight; all five of the flat list
    found = trees.baselines(every, 0)
    assert found["left-branching"] == trees.TreeScores(2, (4 / 8 + 1) / 2, 0.0, 0.5)
    # the whole is all that is right
    assert found["right-branching"] == trees.TreeScores(2, (1 / 8 + 1 / 5) / 2, 0.0, 0.0)
    assert trees.score([flat], [gold_merges(flat)]).lists is None
    assert trees.baselines(every, 1) == trees.baselines(every, 1) != found
    # not equally many spans: precision 1/2, recall 1
    assert trees.f1([(0, 2), (0, 3)], [(0, 3)]) == pytest.approx(2 / 3)


def test_random_trees_choose_neighbours_uniformly():
    uniform = Random(0).random
    drawn = Counter(tuple(trees.random_merges(4, uniform)) for _ in range(6000))
    assert set(drawn) == {(i, j, 0) for i in range(3) for j in range(2)}
    assert stats.chisquare(list(drawn.values())).pvalue > FAMILY_WISE / P_VALUES


def test_scores_of_what_is_no_parse_are_refused():
    tokens = parse("[MAX 1 2]").tokens
    with pytest.raises(
        ValueError, match="expected 4 merges for 5 tokens, got 3; leave the padding"
    ):
        trees.score([tokens], [[0, 0, 0]])
    with pytest.raises(ValueError, match="more than one token, got none"):
        trees.score([("7",)], [[]])
    with pytest.raises(ValueError, match="expected two trees with spans, got 0 and 1"):
        trees.f1([], [(0, 2)])


def test_accuracy_by_size():
    sizes, correct = [1, 5, 5, 9, 9, 9, 9], [True, True, False, True, True, False, True]
    assert trees.accuracy_by(sizes, correct, [4, 8, 20, 30]) == [
        trees.Group(1, 4, 1, 1.0, 0.0),
        trees.Group(5, 8, 2, 0.5, pytest.approx(0.125**0.5)),
        trees.Group(9, 20, 4, 0.75, pytest.approx((0.1875 / 4) ** 0.5)),
    ]
    assert [x[:3] for x in trees.accuracy_by(sizes, correct)] == [(1, 1, 1), (5, 5, 2), (9, 9, 4)]
    with pytest.raises(ValueError, match="expected sizes of at most 8, got 9; add a group"):
        trees.accuracy_by(sizes, correct, [4, 8])


# pictures


def test_pictures_show_both_trees():
    tokens = parse("[MAX 1 [MIN 2 3] ]").tokens
    parsed = drawings.Parsed(tokens, trees.left_branching(len(tokens)), 4)
    picture = drawings.draw_trees(parsed)
    assert picture == drawings.draw_trees(drawings.Parsed(list(tokens), [0] * 8, 4))
    root = ElementTree.fromstring(picture)
    learned, right = root.findall("{*}g")
    texts = [[x.text for x in tree.findall("{*}text")] for tree in (learned, right)]
    assert texts[0] == ["learned: 4 of 8 joins are right, answer 4", *tokens]
    assert texts[1] == ["right: value 2", *tokens, "2", "2"]
    for tree in (learned, right):
        filled = [x.get("fill") != "#ffffff" for x in tree.findall("{*}circle")]
        broken = ["stroke-dasharray" in x.attrib for x in tree.findall("{*}path")]
        assert (len(filled), sum(filled), sum(broken)) == (8, 4, 4)
    width, height = map(float, root.get("viewBox").split()[2:])
    for group in (learned, right):
        shift = float(re.search(r"[\d.]+", group.get("transform"))[0])
        for mark in group.findall("{*}circle"):
            assert 0 < shift + float(mark.get("cx")) < width
            assert 0 < float(mark.get("cy")) < height
    # several, one below the other
    digit = drawings.Parsed(("7",), [])
    assert "answer" not in drawings.draw_trees(digit)
    several = ElementTree.fromstring(drawings.draw_trees(parsed, digit))
    shifts = [x.get("transform").split()[1] for x in several.findall("{*}g")]
    assert shifts == ["0)", "0)", f"{height:g})", f"{height:g})"]
    assert float(several.get("viewBox").split()[3]) > height
    with pytest.raises(ValueError, match="expected 8 merges for 9 tokens, got 7"):
        drawings.draw_trees(drawings.Parsed(tokens, [0] * 7))
    with pytest.raises(ValueError, match="got none; give at least one"):
        drawings.draw_trees()


@pytest.mark.parametrize("seed", range(5))
def test_lines_of_a_picture_do_not_cross(seed):
    uniform = Random(seed).random
    tokens = next(generate(uniform, Grammar(shortest=20, longest=40)))
    merges = trees.random_merges(len(tokens), uniform)
    picture = drawings.draw_trees(drawings.Parsed(tokens, merges))

    def apart(line, other):
        """Whether the ends of another line are on one side of a line, or on it."""
        (x, y), (a, b) = line
        sides = [(a - x) * (q - y) - (b - y) * (p - x) for p, q in other]
        return min(sides) * max(sides) > -1e-6

    for tree in ElementTree.fromstring(picture).findall("{*}g"):
        lines = []
        for path in tree.findall("{*}path"):
            left, top, right = (
                tuple(map(float, x.split())) for x in re.split("[ML]", path.get("d"))[1:]
            )
            lines += [(top, left), (top, right)]
        assert len(lines) == 2 * (len(tokens) - 1)
        for line, other in itertools.combinations(lines, 2):
            # those of one node and of its parent meet there
            assert set(line) & set(other) or apart(line, other) or apart(other, line)


# the real files

REAL = os.environ.get("DISCRETEGRAD_DATA")
needs_files = pytest.mark.skipif(
    not REAL or not (Path(REAL) / "listops").exists(),
    reason="DISCRETEGRAD_DATA names no data directory with ListOps",
)


@needs_files
def test_the_real_files():
    listops = data.load_listops()
    assert [len(x.labels) for x in listops] == [77_202, 857, 8_689, 10_000]
    used = {number for x in listops for number in x.tokens.unique().tolist()}
    assert used == set(range(len(data.VOCABULARY)))
    assert int(listops.long_test.lengths.max()) == 1_139
    short = listops.long_test.lengths < data.LIMIT
    assert torch.equal(listops.long_test.tokens[short, :99], listops.test.tokens)
    assert data.depths(listops.long_test.tokens).max() == PUBLISHED.depth
    train, valid, test = (set(rows(x)) for x in listops[:3])
    assert (len(train), len(valid), len(test)) == (77_202, 857, 8_689)
    assert train.isdisjoint(valid | test)
    assert valid.isdisjoint(test)
    # those that are drawn are the first of their sizes
    nested = data.depths(listops.long_test.tokens) > 2
    for tokens in SHOWN:
        (number, *_) = (nested & (listops.long_test.lengths == len(tokens))).nonzero()
        assert data.decode(listops.long_test.tokens[number[0]]) == tokens


@needs_files
def test_what_the_page_says_of_guesses_is_true():
    """How often the most frequent value of long expressions is right, and that of an operator."""
    page = " ".join((Path(__file__).parents[1] / "docs" / "listops.md").read_text().split())
    test = data.load_listops().long_test
    long = test.lengths >= 200
    operators, values = test.tokens[long][:, 1].tolist(), test.labels[long].tolist()
    frequent = Counter(values).most_common(1)[0][1] / len(values)
    each = (
        Counter(v for o, v in zip(operators, values, strict=True) if o == x) for x in set(operators)
    )
    by_operator = sum(x.most_common(1)[0][1] for x in each) / len(values)
    assert f"would be right in {100 * frequent:.1f} %" in page
    assert f"outermost operator in {100 * by_operator:.1f} %" in page


@needs_files
@pytest.mark.slow
def test_generated_data_are_as_long_as_the_real_ones():
    """As many are drawn as were published, since the more there are, the longer they become."""
    drawn = list(itertools.islice(generate(Random(0).random), 100_000))
    lengths = data.load_listops().long_test.lengths.tolist()
    p_value = stats.ks_2samp([len(x) for x in drawn], lengths).pvalue
    assert p_value > FAMILY_WISE / P_VALUES
