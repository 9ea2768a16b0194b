# SPDX-License-Identifier: Apache-2.0
"""Checks of options that are made when a model is compiled, not when they are set."""

from typing import Any

from poptorch.base import device, logging
from poptorch.base.errors import CPP_ERROR_TYPE, Error, not_yet
from poptorch.base.logging import logger
from poptorch.enums import ConnectionType
from poptorch.options import Options, backend_keys
from poptorch.options.table import OPTIONS, Option

_NO_LOG_DIR = "."  # the default


def check_compilable(options: Options, training: bool) -> None:
    """Raise if a model can't be compiled with these options; warn of what has no effect yet."""
    logging.limit_repeats(options.max_repeat_logs)
    _use_log_dir(options.log_dir)
    backend = options._Popart.options
    for key, value in backend.items():
        backend_keys.check_key(key, value)
        if key in backend_keys.CHOSEN:
            logger.warning(
                "%s forced by the user from default to %r: other options decide it here", key, value
            )
    idle = backend_keys.without_effect(backend)
    if idle:
        logger.info("Options._Popart: no effect on virtual IPUs: %s", ", ".join(idle))
    half = backend.get("convolutionOptions", {}).get("partialsType") == "half"
    if half and backend.get("partialsTypeMatMuls") != "half":
        logger.warning(
            "convolutionOptions: convolutions accumulate in half precision only if matrix products "
            "do: use Options.Precision.setPartialsType(torch.half)"
        )
    options.toDict()  # raises if a key of the backend is that of an option
    _check_target(options)
    if training and options.Distributed.numProcesses > 1:
        raise not_yet(
            f"Training with {options.Distributed.numProcesses} processes",
            "gradients are not reduced over processes",
        )
    for row in OPTIONS:
        if row.pending and row.is_missed(_value(options, row)):
            logger.warning("%s.%s: %s.", row.section, row.shown_setter, row.pending)


def _use_log_dir(directory: str) -> None:
    # Nobody asked for a file in the working directory.
    if directory == _NO_LOG_DIR:
        return
    try:
        logging.write_to(directory)
    except OSError as exc:
        raise Error(
            f"Options.logDir: cannot write to {directory!r}: {exc.strerror}", type=CPP_ERROR_TYPE
        ) from None


def uses_ipu_model(options: Options) -> bool:
    """Whether the IPU Model is asked for, by the option or else by the environment."""
    if options.exists("use_model"):
        return options.use_model
    return device.model_requested()


def _check_target(options: Options) -> None:
    offline = options.connection_type == ConnectionType.Never
    model = uses_ipu_model(options)
    problem = ""
    if offline and model:
        problem = "poptorch.ConnectionType.Never is not supported for the IPU model"
    elif offline and options.exists("ipu_id"):
        problem = "Offline compilation targeting a specific id not supported"
    elif (offline or model) and options._Popart.options["instrumentWithHardwareCycleCounter"]:
        problem = "Cycle count logging is only supported on actual IPU hardware"
    if problem:
        raise Error(problem, type=CPP_ERROR_TYPE)


def _value(options: Options, row: Option) -> Any:
    part = options if row.section == "Options" else getattr(options, row.section)
    return (options._Popart.options if row.backend else part._values).get(row.key)
