"""`forerun config`: the settings in force, and where each came from.

With a service's name its flags are understood too, so that a command line can be tried out before it is used.
`--toml` writes a settings file that gives the same settings; without any, that is the file of all defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forerun import config, settings_file
from forerun.config import Found

_EPILOG = """\
examples:
  forerun config                                     everything
  forerun config target --config forerun.toml        one service, with a settings file
  FORERUN_TARGET_PORT=7 forerun config target        who wins: flag, variable, file, default
  forerun config --toml > forerun.toml               a file to begin with; its comments explain each setting
  forerun up --config forerun.toml                   (or FORERUN_CONFIG=forerun.toml) and how to use it
"""
_WIDE = 120
_HEAD = """\
# Settings of forerun, for --config or FORERUN_CONFIG. Flags and FORERUN_* variables go before this file. What is
# commented out is the default. Written by `forerun config --toml`.
"""


def add_parser(commands: Any) -> None:
    """Adds the subcommand, and one below it for each table."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "config",
        help="show the settings in force, and where each came from",
        description="Prints every setting of the services as it would be used now, and where it came from.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, tables=list(config.TABLES))
    _add_flags(parser)
    below = parser.add_subparsers(title="only one of them", metavar="SERVICE")
    for table, kinds in config.TABLES.items():
        if table == settings_file.NO_TABLE:
            continue
        # Without defaults of its own it leaves alone what was given before its name.
        one = below.add_parser(table, help=f"the table [{table}], with its flags", argument_default=argparse.SUPPRESS)
        one.set_defaults(tables=[table])
        _add_flags(one)
        for kind in kinds:
            config.add_flags(one.add_argument_group("settings, with their [defaults]"), kind)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--toml", action="store_true", help="print a settings file instead")
    config.add_config_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    """Looks everything up and prints it."""
    flags = vars(arguments)
    found = {table: _look_up(table, flags) for table in arguments.tables}
    if arguments.toml:
        sys.stdout.write(as_toml(found))
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
        console.print(as_table(found))
    return 0


def _choices(choices: tuple[str, ...] | None) -> str:
    return f": {', '.join(choices)}" if choices else ""


def _look_up(table: str, flags: Mapping[str, Any]) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for kind in config.TABLES[table]:
        found |= config.look_up(kind, flags, prefix=table)
    return found


def as_table(found: Mapping[str, Mapping[str, Found]]) -> Table:
    """A line a setting; what is not the default stands out."""
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("setting", "value", "from"):
        grid.add_column(title, overflow="fold")
    for table, settings in found.items():
        if table:
            grid.add_row(Text(f"\n[{table}]", "bold"))
        for name, (value, origin) in settings.items():
            shown = ",".join(value) if isinstance(value, tuple) else str(value)
            grid.add_row(name, Text(shown), Text(origin or "default"), style="" if origin else "dim")
    return grid


def as_toml(found: Mapping[str, Mapping[str, Found]]) -> str:
    """A settings file that gives these settings."""
    helps = {
        (table, item.name): item.metadata["help"] + _choices(item.metadata["choices"])
        for table, kinds in config.TABLES.items()
        for kind in kinds
        for item in dataclasses.fields(kind)
    }
    tables = [
        settings_file.write(
            table, [(name, value, helps[table, name], not origin) for name, (value, origin) in settings.items()]
        )
        for table, settings in found.items()
    ]
    return "\n".join([_HEAD, *tables])
