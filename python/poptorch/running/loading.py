# SPDX-License-Identifier: Apache-2.0
"""``poptorch.load``."""

import os
from collections.abc import Callable

from poptorch.base.naming import found_in
from poptorch.enums import ConnectionType
from poptorch.options import Options
from poptorch.running.executor import PoplarExecutor, inferenceModel, trainingModel
from poptorch.running.stored import ExportedFile, unpickled


@found_in("poptorch")
def load(
    filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], None] | None = None
) -> PoplarExecutor:
    """The model of a file, with its program, optimizer and random state, ready to be called.

    Files hold pickles, and reading a pickle runs whatever code it asks for: load only files of
    people you trust.

    Args:
        filename: written by ``compileAndExport`` or ``save`` with ``export_model=True``.
        edit_opts_fn: may change the options first. Those that only matter at run time have an
            effect; the program stays what it is.
    """
    file = ExportedFile(filename, AssertionError)
    assert file.model, (
        f"{file.name} was created with 'export_model=False': wrap the model again and call "
        "loadExecutable()"
    )
    stored = unpickled(file.model)
    options = stored.options.clone()
    # What was compiled offline is to be run here.
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)
    options.deleteIfExists("ipu_version")
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    if stored.training:
        executor = trainingModel(stored.model, options, stored.optimizer)
    else:
        executor = inferenceModel(stored.model, options)
    executor._restore(file, stored)
    return executor
