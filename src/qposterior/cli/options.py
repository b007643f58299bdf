"""Options: made of the rules of settings, and what is written as text on the command line or in a TOML file."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field

TYPES = {"int": click.INT, "float": click.FLOAT, "str": click.STRING}


def settings_options(settings: type, *names: str, **parse_fns: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return the decorator that gives a command an option for each of these settings, in this order.

    Those that are neither numbers nor plain text come last, each with the function that reads it, a callback of click.
    """
    known = {item.name: item for item in fields(settings)}
    options = [_option(known[name], parse_fns.get(name)) for name in (*names, *parse_fns)]

    def decorate(command_fn: Any) -> Any:
        for option in reversed(options):
            command_fn = option(command_fn)
        return command_fn

    return decorate


def _option(item: Field[Any], parse_fn: Callable[..., Any] | None) -> Callable[[Any], Any]:
    rule, kind = item.metadata["rule"], str(item.type).partition(" ")[0]
    how: dict[str, Any] = {"help": rule.help, "metavar": rule.metavar, "callback": parse_fn}
    if kind == "bool":
        how["is_flag"] = True
    elif kind.startswith(("tuple", "dict")) and item.default is not None:  # text for each part, or one text for all
        how["multiple"] = True
    else:
        how |= {"type": TYPES.get(kind), "default": item.default, "show_default": item.default is not None}
        if rule.choices:
            how["type"] = click.Choice(rule.choices)
        if rule.least is not None:
            how["type"] = click.IntRange(min=rule.least)
    return click.option(rule.flag or f"--{item.name}", item.name, **how)


# -- text to values ----------------------------------------------------------------------------------------------------


def parse_names(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[str]:
    """Return the names of a comma-separated list."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def parse_numbers(_context: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Return the whole numbers of a comma-separated list."""
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise click.UsageError(f"{parameter.opts[0]} takes whole numbers separated by commas, got {text!r}") from error


def parse_options(_context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return the dictionary of repeated KEY=VALUE options, read as numbers, booleans or text."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise click.UsageError(f"{parameter.opts[0]} takes KEY=VALUE, got {pair!r}")
        try:
            settings[key] = json.loads(text)
        except json.JSONDecodeError:
            settings[key] = text
    return settings


def parse_agent_options(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return KEY=VALUE for all agents, and under the name of an agent what AGENT:KEY=VALUE says for it alone."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        agent, colon, rest = pair.partition(":") if ":" in pair.partition("=")[0] else ("", "", pair)
        target = settings.setdefault(agent, {}) if colon else settings
        target |= parse_options(context, parameter, (rest,))
    return settings


def parse_prior(_context: Any, _parameter: Any, text: str | None, *, also_of_models: bool = False) -> Any:
    """Return the prior of NAME:KEY=VALUE,…: on Q, on rewards, or for `fit` also on the model itself."""
    if text is None:
        return None
    from qposterior.errors import unknown_name
    from qposterior.model.model_prior import ModelPrior
    from qposterior.model.prior import PRIORS

    kinds = PRIORS | ({"model": ModelPrior} if also_of_models else {})
    name, _, rest = text.partition(":")
    if name not in kinds:
        raise unknown_name("prior", name, kinds)
    pairs = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    try:
        return kinds[name](**{key: json.loads(value) for key, value in pairs.items()})
    except (TypeError, json.JSONDecodeError) as error:
        raise click.UsageError(f"--prior {text}: {error}") from error


def parse_columns(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return {our name: theirs} of options OURS=THEIRS."""
    columns = {}
    for text in given:
        ours, equals, theirs = text.partition("=")
        if not equals or not theirs:
            raise click.UsageError(f"--column takes OURS=THEIRS, for example state=position; got {text!r}")
        columns[ours.strip()] = theirs.strip()
    return columns


def parse_policies(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Path]:
    """Return {name: file} of options FILE or NAME=FILE; a file is called by its stem."""
    from qposterior.inference.policies import check_name

    files: dict[str, Path] = {}
    for text in given:
        name, equals, rest = text.partition("=")
        is_named = bool(equals and rest) and not Path(text).exists()
        path = Path(rest if is_named else text)
        name = check_name(name.strip() if is_named else path.stem)
        if not path.is_file():
            raise click.UsageError(f"--policy {text}: there is no file {path}")
        if name in files:
            raise click.UsageError(f"--policy: two policies are called {name!r}; give one of them as NAME=FILE")
        files[name] = path
    return files


# -- a file of options -------------------------------------------------------------------------------------------------


def read_settings(context: click.Context, _parameter: click.Parameter, path: str | None) -> None:
    """Take the options of a TOML file as defaults: what stands on the command line wins."""
    if path is None:
        return
    import tomllib

    try:
        settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"--settings {path}: {error}") from error
    options: dict[str, Any] = {
        name.lstrip("-"): each for each in context.command.params for name in each.opts if name[0] == "-"
    }
    plain = {}
    for written, value in settings.items():
        option = options.get(written.replace("_", "-"))
        if option is None or option.name in (None, "settings"):
            raise click.UsageError(f"--settings {path}: there is no option {written!r}")
        if option.is_flag and value is not True and value is not False:
            raise click.UsageError(f"--settings {path}: {written} must be true or false, got {value!r}")
        plain[option.name] = value if option.is_flag else _as_text(value, is_multiple=option.multiple)
    context.default_map = {**(context.default_map or {}), **plain}


def _as_text(value: Any, *, is_multiple: bool) -> str | list[str]:
    """Return a TOML value as it would be written on the command line."""
    if isinstance(value, dict):
        pairs = []
        for key, one in value.items():  # a table inside is for the agent of that name
            inner = {f"{key}:{name}": each for name, each in one.items()} if isinstance(one, dict) else {key: one}
            pairs += [f"{name}={each if isinstance(each, str) else json.dumps(each)}" for name, each in inner.items()]
        return pairs
    texts = [str(one) for one in (value if isinstance(value, list) else [value])]
    return texts if is_multiple else ",".join(texts)
