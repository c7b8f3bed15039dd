"""`python -m gamelora COMMAND`: fine-tunes without a browser, through the functions that the pages use.

    python -m gamelora train --preset laptop
    python -m gamelora train --config FILE.yaml --set learning_rate=1e-4 --run NAME
    python -m gamelora resume NAME
    python -m gamelora merge NAME --out DIR
    python -m gamelora measure-step --preset laptop
    python -m gamelora show-config --preset paper > FILE.yaml

Several processes, on one machine or many: `accelerate launch -m gamelora train ...`, or `torchrun --nproc_per_node N -m --
gamelora train ...` (without the `--` torchrun takes --run for an option of its own).
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from transformers.utils import logging as transformers_logging

from analysis.devices import GIB, processes
from gamelora import dry_step
from gamelora.config import read_settings
from gamelora.merge import merge_run
from gamelora.presets import PRESETS, load_config
from gamelora.runs import Run, free_name
from gamelora.training import RESUME_MAY_CHANGE, resume_run, start_run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did its work, 2 with one `error:` line when the input was at fault."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning)  # of the libraries about each other
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    try:
        options.func(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m gamelora", description=__doc__, formatter_class=style)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train a new run")
    _add_config_options(train)
    train.add_argument("--run", metavar="NAME", help="name of the run; by default that of the preset or file, numbered")
    train.set_defaults(func=_train)
    resume = commands.add_parser("resume", help="go on with a run from its newest complete checkpoint")
    resume.add_argument("name", metavar="NAME")
    changeable = f"change one of {', '.join(RESUME_MAY_CHANGE)}; may be repeated"
    resume.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help=changeable)
    resume.set_defaults(func=_resume)
    merge = commands.add_parser("merge", help="write the tuned model as one folder, without PEFT")
    merge.add_argument("name", metavar="NAME")
    merge.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder that does not exist yet")
    merge.set_defaults(func=_merge)
    measure = commands.add_parser("measure-step", help="do a few steps and say what memory and time the run takes")
    _add_config_options(measure)
    measure.set_defaults(func=_measure_step)
    show = commands.add_parser("show-config", help="print a config with every setting, as YAML")
    _add_config_options(show)
    show.set_defaults(func=_show_config)
    return parser


def _measure_step(options: argparse.Namespace) -> None:
    config = load_config(options.config, options.preset, options.settings)
    step = dry_step.measure(config)
    print(
        f"a step: {step.plain:.3g} s, {step.renewing:.3g} s when it renews the weights; an evaluated row: {step.evaluation:.3g} s"
    )
    print(f"memory: {step.peak_bytes / GIB:.2f} GiB at its peak, {step.free_bytes / GIB:.2f} GiB were free")
    print(f"all {config.steps} steps: about {step.seconds(config) / 60:.1f} minutes")


def _add_config_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, metavar="FILE.yaml", help="settings; what it leaves out keeps its default")
    command.add_argument("--preset", choices=PRESETS, help="settings to start from")
    settings = "one setting on top, such as learning_rate=1e-4; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help=settings)


def _train(options: argparse.Namespace) -> None:
    config = load_config(options.config, options.preset, options.settings)
    wanted = options.config.stem if options.config else options.preset
    if not (options.run or wanted):
        raise ValueError(
            "nothing says what to train: give --preset or --config (`show-config` writes one), or --run NAME for defaults."
        )
    _say(start_run(options.run or free_name(wanted), config))


def _resume(options: argparse.Namespace) -> None:
    _say(resume_run(options.name, read_settings(options.settings)))


def _say(run: Run) -> None:
    if processes().is_main_process:
        status = run.status()
        where = (
            f"adapter in {run.adapter}"
            if status["state"] == "finished"
            else f"resume with `python -m gamelora resume {run.name}`"
        )
        print(f"{run.name}: {status['state']} after step {status['step']} of {status['steps']}; {where}")


def _merge(options: argparse.Namespace) -> None:
    print(f"merged model in {merge_run(Run.open(options.name), options.out)}")


def _show_config(options: argparse.Namespace) -> None:
    print(load_config(options.config, options.preset, options.settings).to_yaml(), end="")


if __name__ == "__main__":
    sys.exit(main())
