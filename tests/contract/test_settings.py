"""Settings and the options that are made of them: the same defaults, the same rules."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields

import click
import pytest

import qposterior as qp
from qposterior.cli.compare import compare_command
from qposterior.cli.fit import fit_command
from qposterior.experiments.run_spec import RunSpec
from qposterior.logs.checks import Check
from qposterior.logs.settings import FitSettings
from qposterior.progress import show_progress
from qposterior.settings import check_settings, setting

COMMANDS = [(compare_command, RunSpec), (fit_command, FitSettings)]


@pytest.mark.parametrize(("command", "settings"), COMMANDS)
def test_a_command_has_an_option_for_every_setting_with_its_help_and_its_default(command, settings):
    options = {option.name: option for option in command.params if isinstance(option, click.Option)}
    with_help = [item for item in fields(settings) if "rule" in item.metadata and item.metadata["rule"].help]
    assert len(with_help) >= 7
    for item in with_help:
        option = options[item.name]
        assert option.help == item.metadata["rule"].help
        if item.default not in (None, MISSING, (), False):
            assert option.default == item.default


@dataclass(frozen=True, kw_only=True)
class Kitchen:
    ovens: int = setting(1, least=1)
    heat: float | None = setting(None, called="heat in degrees", interval="(0, 300]")
    fuel: str = setting("gas", choices=("gas", "wood"))
    pots: dict[str, int] = setting(dict)
    cook: str = "anybody"

    def __post_init__(self):
        check_settings(self)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ovens": 0}, "ovens must be at least 1, got 0"),
        ({"ovens": None}, "ovens must be a whole number, got None"),
        ({"heat": 301}, "heat in degrees must lie in"),
        ({"fuel": "wod"}, "unknown fuel 'wod'; did you mean 'wood'?"),
    ],
)
def test_settings_are_held_to_their_rules(given, words):
    with pytest.raises(qp.InvalidInputError, match=words.replace("(", r"\(").replace("?", r"\?")):
        Kitchen(**given)


def test_defaults_keep_the_rules_and_are_made_anew():
    one, other = Kitchen(), Kitchen(heat=300.0)
    assert one.heat is None
    assert one.pots == {}
    assert one.pots is not other.pots


def test_the_time_that_is_left_is_told_at_the_pace_since_the_beginning():
    with show_progress("begin") as progress:
        assert progress.words == "begin"
        progress._started -= 10.0  # ten seconds ago
        progress.show("at work", 21, 26, with_time=True)  # the first of six: twenty were done before
        assert progress.words == "at work  about 50 s left"
        progress._started -= 10.0
        progress.show("at work", 22, 26, with_time=True)
        assert progress.words == "at work  about 40 s left"
        progress.show("closing", 26, 26)
        assert progress.words == "closing"


def test_an_attribute_that_was_renamed_is_found_under_its_old_name_with_a_warning():
    check = Check(name="memory", fits=True, note="it does not matter")
    with pytest.warns(DeprecationWarning, match="Check.words is called note now"):
        assert check.words == check.note
    assert check.to_dict()["words"] == check.to_dict()["note"] == check.note
