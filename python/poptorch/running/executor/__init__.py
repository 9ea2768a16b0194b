# SPDX-License-Identifier: Apache-2.0
"""``PoplarExecutor``: a module wrapped so that calling it runs its program on virtual IPUs.

The executor is made of layers, each of which uses those before it:

====================  ==============================================================================
``state``             what an executor holds, and who may use the program when
``weights``           weights on their way to the device and back
``optimizer``         the optimizer's values and state on the device
``device``            attaching, detaching, random numbers
``compiling``         from the first arguments to a program, and freeing it
``call``              a call
``files``             the program saved and loaded
``wrap``              the class itself; ``trainingModel`` and ``inferenceModel``
====================  ==============================================================================
"""

from poptorch.running.executor.wrap import PoplarExecutor, inferenceModel, trainingModel

__all__ = ["PoplarExecutor", "inferenceModel", "trainingModel"]
