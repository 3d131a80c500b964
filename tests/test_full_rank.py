"""The full-rank Gaussian's factored scores are the dense ones."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import bbsvi
from tests.scores_by_jacobian import assert_same, jacobian, shaken, zero_target


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), dim=st.integers(1, 6), num_draws=st.integers(1, 7))
def test_every_contraction_is_the_dense_one(seed, dim, num_draws):
    family = shaken(bbsvi.families.FullRank(zero_target({"z": (dim,)})), seed)
    draws = family.sample(num_draws, tf.constant([1, seed]))
    w = np.random.default_rng(seed).normal(size=num_draws)
    assert_same(family.scores(draws), jacobian(family, draws), w)


def test_beside_discrete_latents_and_through_bijectors():
    shapes = {"rate": (), "x": (2, 2), "k": (), "bits": (3,), "n": ()}
    supports = {"rate": "positive", "k": ("categorical", 3), "bits": "binary", "n": "count"}
    family = shaken(bbsvi.families.FullRank(zero_target(shapes, supports)), 1)
    draws = family.sample(9, tf.constant([1, 2]))
    assert_same(family.scores(draws), jacobian(family, draws), np.random.default_rng(1).normal(size=9))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_score_near_the_floor_of_the_scale_is_finite(dtype):
    family = bbsvi.families.FullRank(zero_target({"z": (3,)}, dtype=dtype))
    loc, log_diag, lower = family.parameters()
    family.assign([loc, np.full_like(log_diag, -20), lower])
    scores = family.scores(family.sample(5, tf.constant([1, 2])))
    assert all(np.isfinite(h).all() and h.dtype.name == dtype for h in scores.dense())
