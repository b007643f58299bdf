"""The core at work, in a minute: the command line answers, one posterior and one fit come out right."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires, version

import numpy as np

import qposterior as qp

LOG = "state,action,reward,next_state,terminated\n" + "a,stay,-1,a,0\na,go,-1,b,0\nb,go,-2,home,1\nb,stay,-3,b,0\n" * 3


def main() -> None:
    """Raise unless everything works."""
    # How click says it depends on its version.
    for arguments, status in ((["--help"], 0), (["paper", "--list"], 0), ([], 2), (["fit"], 2)):
        command = [sys.executable, "-m", "qposterior", *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == status, answer
        assert "Traceback" not in answer.stderr, answer
    seen = qp.Experience.of_pairs(qp.make_environment("five-state"), [(0, 0), (0, 1), (1, 0), (2, 1)])
    post = qp.posterior(seen, method="exact", particles=100)
    np.testing.assert_allclose(post.prob_optimal(0), [0.0, 1.0], atol=1e-6)  # 1 + 0 against 0 + 2
    with open("log.csv", "w", encoding="utf-8") as stream:
        stream.write(LOG)
    found = qp.fit("log.csv", particles=100, discount=1.0)
    assert found.policy == {"a": "go", "b": "go"}, found.policy
    assert found.table["count"].tolist() == [3, 3, 3, 3], found.table
    names = [re.split("[<>=!~ ;]", need)[0] for need in requires("qposterior") or [] if "extra ==" not in need]
    print("Python", sys.version.split()[0], "with", ", ".join(f"{name} {version(name)}" for name in names), "works")


if __name__ == "__main__":
    main()
