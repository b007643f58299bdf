"""Minari datasets as logs: the same rows, the same answer as from a frame that was written by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import qposterior as qp
from qposterior.logs.columns import LogError
from qposterior.logs.files import add_source
from qposterior.logs.preview import inspect_log
from qposterior.logs.read import read_log

gym = pytest.importorskip("gymnasium")
minari = pytest.importorskip("minari")
pytestmark = pytest.mark.filterwarnings("ignore:.* None:UserWarning")  # by the writer, of what is not told


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def write(name, observation_space, episodes):
    """Write episodes of (observations, actions, rewards, terminated) as a local dataset."""
    from minari.data_collector import EpisodeBuffer

    buffers = [
        EpisodeBuffer(
            id=i,
            observations=observations,
            actions=list(actions),
            rewards=list(rewards),
            terminations=[False] * (len(rewards) - 1) + [ended],
            truncations=[False] * (len(rewards) - 1) + [not ended],
        )
        for i, (observations, actions, rewards, ended) in enumerate(episodes)
    ]
    minari.create_dataset_from_buffers(
        dataset_id=name,
        buffer=buffers,
        observation_space=observation_space,
        action_space=gym.spaces.Discrete(3),
        algorithm_name="by hand",
        author="nobody",
        author_email="nobody@example.org",
        code_permalink="https://example.org",
    )


EPISODES = [
    ([0, 1, 2, 3], [0, 1, 2], [1.0, -2.0, 0.5], True),
    ([0, 2, 0], [1, 1], [0.0, 4.0], False),  # cut off
    ([2, 3], [2], [0.25], True),
]


def test_a_dataset_is_the_log_of_its_steps():
    write("toy/line-v0", gym.spaces.Discrete(4), EPISODES)
    rows = [
        (s, a, r, t, int(ended and i == len(rewards) - 1), episode)
        for episode, (states, actions, rewards, ended) in enumerate(EPISODES)
        for i, (s, a, r, t) in enumerate(zip(states[:-1], actions, rewards, states[1:], strict=True))
    ]
    by_hand = read_log(pd.DataFrame(rows, columns=["state", "action", "reward", "next_state", "terminated", "episode"]))
    read = read_log("minari:toy/line-v0")
    assert (read.states, read.actions, read.starts, read.ended, read.contexts) == (
        by_hand.states,
        by_hand.actions,
        by_hand.starts,
        by_hand.ended,
        by_hand.contexts,
    )
    assert read.num_episodes == 3
    assert set(read.ended) == {read.states.index("3")}
    for name in ("pairs", "count", "reward_mean", "reward_deviation", "moves", "move_count"):
        np.testing.assert_array_equal(getattr(read, name), getattr(by_hand, name), err_msg=name)
    assert inspect_log("minari:toy/line-v0").facts["rows"] == 6
    fitted = qp.fit("minari:toy/line-v0", discount=0.9, particles=100)
    assert fitted.source == "minari:toy/line-v0"
    assert fitted.log.num_rows == 6


def test_observations_of_several_parts_are_labels_of_several_words():
    space = gym.spaces.Tuple((gym.spaces.Discrete(5), gym.spaces.MultiDiscrete([2, 3])))
    points = ([4, 0], [np.array([1, 2]), np.array([0, 0])])  # by part
    write("toy/parts-v0", space, [(points, [0], [1.0], True)])
    assert read_log("minari:toy/parts-v0").states == ["4 1 2", "0 0 0"]


def test_numbers_are_refused_and_a_dataset_that_is_not_here_names_the_way_to_get_it():
    box = gym.spaces.Box(0.0, 1.0, (2,))
    write("toy/box-v0", box, [([np.zeros(2, np.float32)] * 2, [0], [1.0], True)])
    with pytest.raises(LogError, match="observations must be discrete"):
        read_log("minari:toy/box-v0")
    with pytest.raises(LogError, match="minari download 'toy/other-v0'"):
        read_log("minari:toy/other-v0")
    with pytest.raises(qp.InvalidInputError, match='engine="dask" reads files'):
        qp.fit("minari:toy/box-v0", engine="dask")


def test_a_dataset_goes_in_once(tmp_path):
    from pathlib import Path

    source = Path("minari:toy/line-v0")
    sources = add_source([], source, again=False)
    with pytest.raises(qp.InvalidInputError, match="has gone in already"):
        add_source(sources, source, again=False)
    assert len(add_source(sources, source, again=True)) == 2
    assert add_source(sources, Path("minari:toy/line-v1"), again=False)[1] != sources[0]
