"""The judge: what draws of models say of a log, held against the truth of its problem."""

from __future__ import annotations

import numpy as np

from dense import FloatArray, Models, improve, look_ahead, optimal_values, policy_values
from families import Problem
from log_methods import Draws, Log

LEVEL = 0.9


def score_draws(problem: Problem, log: Log, draws: Draws, num: int) -> dict[str, float]:
    """Return every figure of one log and one method; `num` is the number of draws that was asked for."""
    live = ~problem.is_goal
    models = Models.of(*draws, discount=problem.discount, is_goal=problem.is_goal)
    truth = problem.models
    q, value, is_finite = optimal_values(models)
    scores = {"left_out": float(1.0 - is_finite.mean())}
    if not is_finite.any():
        return scores
    if not is_finite.all():
        models, q, value = models.part(is_finite), q[is_finite], value[is_finite]
    start, logged, tried = log.start[live], log.policy[live], log.tried[live] > 0
    true_q, true_value, _ = (part[0] for part in optimal_values(truth))
    scale = natural_scale(problem, true_q)
    scores |= score_optimum(q, true_q, tried, num=num, scale=scale)
    scores["bias_optimum"] = float(value.mean(axis=0) @ start - true_value @ start) / scale
    half = slice(0, models.num // 2) if models.num > 1 else slice(None)
    rest = slice(models.num // 2, None) if models.num > 1 else slice(None)
    policy = recommend(models.part(half), q[half], logged, start, tried)
    scores |= score_policy(models.part(rest), truth, policy, logged=logged, start=start, tried=tried, scale=scale)
    scores["regret"] = float(true_value @ start - policy_values(truth, policy)[0] @ start) / scale
    return scores


def score_q_draws(problem: Problem, log: Log, q: FloatArray, num: int) -> dict[str, float]:
    """Return the figures that draws of Q* (D, S, A) alone allow; the policy is the greedy one of their mean."""
    live = ~problem.is_goal
    q, start = q[:, live], log.start[live]
    true_q, true_value, _ = (part[0] for part in optimal_values(problem.models))
    scale = natural_scale(problem, true_q)
    scores = score_optimum(q, true_q, log.tried[live] > 0, num=num, scale=scale)
    mean = np.where(np.isnan(q[0]), -np.inf, q.mean(axis=0))
    policy = np.eye(q.shape[2])[mean.argmax(axis=1)]
    scores["bias_optimum"] = float(np.nanmax(q, axis=2).mean(axis=0) @ start - true_value @ start) / scale
    scores["regret"] = float(true_value @ start - policy_values(problem.models, policy)[0] @ start) / scale
    return scores


def natural_scale(problem: Problem, true_q: FloatArray) -> float:
    """Return what figures are divided by: the spread of Q* over pairs and what the optimum has over random actions.

    Both are needed: the one is 0 where all states are alike, the other where all actions are.
    """
    live = ~problem.is_goal
    random = np.full(true_q.shape, 1.0 / true_q.shape[1])
    above_random = true_q.max(axis=1) - policy_values(problem.models, random)[0]
    return float(max(np.hypot(true_q.std(), above_random @ problem.start[live]), 1e-9 * np.abs(true_q).max(), 1e-300))


def score_optimum(q: FloatArray, true_q: FloatArray, tried: np.ndarray, *, num: int, scale: float) -> dict[str, float]:
    """Return coverage and interval score of advantages Q* − V*, of tried and untried pairs, and the log score.

    The log score is the mean over states of −log P(the greedy action is one of the best), P being at least 1/(2 num).
    Pairs of which `q` says nothing are nan, and left out.
    """
    known = ~np.isnan(q).any(axis=0)
    advantage = q - np.nanmax(q, axis=2, keepdims=True)
    true_advantage = true_q - true_q.max(axis=1, keepdims=True)
    scores = {}
    for name, pairs in (("advantage", tried & known), ("untried_advantage", ~tried & known)):
        if pairs.any():
            scores |= score_interval(name, advantage[:, pairs], true_advantage[pairs], scale)
    greedy = np.where(np.isnan(q), -np.inf, q).argmax(axis=2)
    is_best = true_advantage >= -1e-9 * scale
    hits = is_best[np.arange(greedy.shape[1]), greedy].mean(axis=0)
    scores["log_score"] = float(-np.log(np.maximum(hits, 0.5 / num)).mean())
    return scores


def recommend(
    models: Models, q: FloatArray, logged: FloatArray, start: FloatArray, tried: np.ndarray | None = None
) -> FloatArray:
    """Return the policy (N, A) of largest mean value at the start among three candidates, improved state by state.

    The candidates are the logged policy, the greedy policy of the mean of Q*, and the optimum of the mean model. Pairs
    that were never tried are not recommended, whatever the method, as `fit` does not.
    """
    one_hot = np.eye(logged.shape[1])
    allowed = np.ones(logged.shape, dtype=bool) if tried is None else tried | ~tried.any(axis=1, keepdims=True)
    barred = np.where(allowed, 0.0, -np.inf)
    mean_q, _, is_finite = optimal_values(models.mean())
    candidates = [logged, one_hot[(q.mean(axis=0) + barred).argmax(axis=1)]]
    if is_finite[0]:
        candidates.append(one_hot[(mean_q[0] + barred).argmax(axis=1)])
    worth = np.array([np.mean(policy_values(models, policy) @ start) for policy in candidates])
    # What differs by rounding alone is no reason to leave the logged policy.
    worth[0] += 1e-9 * (1.0 + abs(worth[0]))
    best = int(np.nanargmax(worth)) if not np.isnan(worth).all() else 0
    return improve(models, candidates[best], start, barred=barred)


def score_policy(
    models: Models,
    truth: Models,
    policy: FloatArray,
    *,
    logged: FloatArray,
    start: FloatArray,
    tried: np.ndarray,
    scale: float,
) -> dict[str, float]:
    """Return coverage and interval scores of Q^π, V^π, V^π at the start and of the gain over the logged policy.

    Q^π is scored apart for pairs that were tried and for those that were not.
    """
    value, logged_value = policy_values(models, policy), policy_values(models, logged)
    is_finite = ~(np.isnan(value) | np.isnan(logged_value)).any(axis=1)
    scores = {"policy_left_out": float(1.0 - is_finite.mean())}
    if not is_finite.any():
        return scores
    models, value, logged_value = models.part(is_finite), value[is_finite], logged_value[is_finite]
    true_value, true_logged = policy_values(truth, policy), policy_values(truth, logged)
    gain, true_gain = (value - logged_value) @ start, float((true_value - true_logged)[0] @ start)
    states, actions = policy.shape
    q = look_ahead(models, value).reshape(-1, states * actions)
    true_q = look_ahead(truth, true_value).ravel()
    for name, pairs in (("policy_q", tried.ravel()), ("untried_policy_q", ~tried.ravel())):
        if pairs.any():
            scores |= score_interval(name, q[:, pairs], true_q[pairs], scale)
    scores |= score_interval("policy_v", value, true_value[0], scale)
    scores |= score_interval("start_v", (value @ start)[:, None], true_value @ start, scale)
    scores |= score_interval("gain", gain[:, None], np.array([true_gain]), scale)
    scores |= score_interval("logged_v", (logged_value @ start)[:, None], true_logged @ start, scale)
    low = float(np.quantile(gain, (1.0 - LEVEL) / 2.0))
    slack = 1e-9 * scale
    scores["claims_gain"] = float(low > slack)
    scores["false_gain"] = float(low > slack and true_gain <= slack)
    scores["prob_better"] = float(np.mean(gain > slack))
    scores["gain_said"], scores["gain_true"] = float(gain.mean()) / scale, true_gain / scale
    scores["bias_policy"] = float((value.mean(axis=0) - true_value[0]) @ start) / scale
    return scores


def score_interval(name: str, draws: FloatArray, truth: FloatArray, scale: float) -> dict[str, float]:
    """Return the share of central 90 % intervals of (D, K) draws that hold the truth, and their mean interval score.

    The interval score of Winkler is the width plus 2/α times the distance by which the truth is missed.
    """
    low, high = np.quantile(draws, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0], axis=0)
    slack = 1e-9 * scale
    inside = (low - slack <= truth) & (truth <= high + slack)
    missed = np.maximum(low - truth, 0.0) + np.maximum(truth - high, 0.0)
    winkler = (high - low + 2.0 / (1.0 - LEVEL) * missed) / scale
    return {
        f"{name}_covered": float(inside.mean()),
        f"{name}_score": float(winkler.mean()),
        f"{name}_width": float((high - low).mean()) / scale,
    }
