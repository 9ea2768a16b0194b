# SPDX-License-Identifier: Apache-2.0
"""The programs of one run of a trainer: one per stage and loader, and the one that trains, whose
weights and optimizer state the others and the host share."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from lightning_ipu._loaders import combined_count
from lightning_ipu._report import write_report
from lightning_ipu._step import Step, StepModule, rows_of
from lightning_ipu._tree import Slot, filled


class Programs:
    """Programs of one LightningModule.

    Args:
        module: the LightningModule.
        methods: stage -> name of its step function.
        training_stage: the stage that trains.
        options: (stage, whether for single micro-batches) -> poptorch's options.
        context: entered around steps while they are captured.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        methods: dict[Any, str],
        training_stage: Any,
        options: Callable[[Any, bool], Any],
        context: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._module = module
        self._methods = methods
        self._training_stage = training_stage
        self._options = options
        self._context = context
        self._steps: dict[tuple[Any, int], Step] = {}
        self._optimizer: Any = None
        self._sent: Any = None
        self._updates = 0
        self._state_is_new = False
        self._shapes: dict[Any, Any] = {}
        self._report: str | None = None
        self._reported: set[int] = set()

    # Making --------------------------------------------------------------------------------------

    def add_training(self, optimizer: Any) -> None:
        """Make the program that trains with ``optimizer``; without one it only computes."""
        self._optimizer = optimizer
        self._state_is_new = True
        self.step(self._training_stage, 0)
        self._sent = _values_of(optimizer)

    def step(self, stage: Any, index: int) -> Step:
        """The step of a stage for loader number ``index``."""
        found = self._steps.get((stage, index))
        if found is None:
            trains = stage == self._training_stage and self._optimizer is not None
            found = self._steps[stage, index] = Step(
                lambda: StepModule(self._module, self._methods[stage], trains, self._context),
                lambda module, single: self._executor(module, self._options(stage, single), trains),
                combined_count(self._options(stage, False)),
                self.detach,
            )
        return found

    def renew(self, stage: Any, batch: Any = None) -> None:
        """Forget the programs of a stage if the model is not any more what they were compiled of.

        Args:
            stage: that begins.
            batch: its first one, if all of them must be of one size.
        """
        shape = _shape_of(self._module, self._optimizer), batch is not None and rows_of(batch)
        if self._shapes.setdefault(stage, shape) == shape:
            return
        self._shapes[stage] = shape
        if stage == self._training_stage:
            self.fetch_weights()
            self.fetch_optimizer()
            self.optimizer_changed()
        for key in [key for key in self._steps if key[0] == stage]:
            for executor in self._steps.pop(key).executors:
                executor.destroy()
            self.step(*key)

    def _executor(self, module: StepModule, options: Any, trains: bool) -> Any:
        import poptorch

        if trains:
            return poptorch.trainingModel(module, options, self._optimizer)
        if options.Training.gradient_accumulation != 1:
            options.Training.gradientAccumulation(1)
        return poptorch.inferenceModel(module, options)

    def executors(self) -> dict[Any, Any]:
        """The main executor of each stage."""
        return {stage: step.executor for (stage, index), step in self._steps.items() if index == 0}

    def _all(self) -> list[Any]:
        return [executor for step in self._steps.values() for executor in step.executors]

    @property
    def _trainer(self) -> Any:
        step = self._steps.get((self._training_stage, 0))
        return step.executor if step is not None and self._optimizer is not None else None

    def destroy(self) -> None:
        """Free all programs, with weights and optimizer state on the host."""
        self.fetch_weights()
        self.fetch_optimizer()
        for executor in self._all():
            executor.destroy()
        for name in ("max_grad_norm", "max_grad_value"):
            if self._optimizer is not None:
                self._optimizer.__dict__.pop(name, None)

    def detach(self) -> None:
        """Take all programs off their devices, with the weights on the host."""
        for executor in self._all():
            if executor.isCompiled() and executor.isAttachedToDevice():
                executor.detachFromDevice()

    # Running -------------------------------------------------------------------------------------

    def train(self, *args: Any) -> Any:
        """One training step: the loss as a scalar, and the rest of what the step returned."""
        step = self.step(self._training_stage, 0)
        self._send_optimizer()
        executor = step.executor
        compiled = executor.isCompiled()
        if compiled and self._optimizer is not None:
            if not executor.isAttachedToDevice():
                executor.attachToDevice()
            else:
                # Whoever has read the weights since the last step may have changed them.
                executor.copyWeightsToDeviceIfNeeded()
            if self._state_is_new:
                self._send_state()
        elif self._optimizer is not None and self._state_is_new and self._optimizer.state:
            self._compile_first(step, args)
        structure, results = step.run(args[0], args[1:])
        self._updates += executor.options.device_iterations
        if not compiled:
            self._write_report(self._training_stage, executor)
        if structure is None:  # without an optimizer there need be no loss
            return None
        index = structure.index if type(structure) is Slot else structure["loss"].index
        loss = results.reduced(index)
        if torch.is_anomaly_enabled() and not loss.isfinite():
            raise RuntimeError(f"The loss is {loss.item()}, found by `detect_anomaly=True`.")
        if type(structure) is Slot:
            return loss
        tensors = list(results.tensors)
        tensors[index] = loss
        return filled(structure, tensors, results.columns)

    def _compile_first(self, step: Step, args: Any) -> None:
        """Compile without running, because the optimizer has state to be sent before."""
        step.compile(args[0], args[1:])
        self._send_state()

    def evaluate(
        self, stage: Any, index: int, args: Any, micro_rows: Callable[[], int | None]
    ) -> Any:
        """One step of another stage."""
        step = self.step(stage, index)
        structure, results = step.run(args[0], args[1:], micro_rows)
        if self._report is not None:
            self._write_report(stage, step.executor)
        return None if structure is None else filled(structure, results.tensors, results.columns)

    # Optimizer and weights -----------------------------------------------------------------------

    def set_clipping(self, optimizer: Any, limit: Any, algorithm: Any) -> None:
        """Make clipping of gradients a part of the program."""
        if not limit:
            return
        by_value = getattr(algorithm, "value", algorithm) == "value"
        setattr(optimizer, "max_grad_value" if by_value else "max_grad_norm", float(limit))

    def let_vary(self, optimizer: Any, name: str) -> None:
        """Let a scheduler change a value of the optimizer besides the learning rate."""
        import poptorch

        poptorch.optim.markAsVariable(optimizer, name)

    def _send_optimizer(self) -> None:
        """Send the optimizer's values if they have changed."""
        if self._optimizer is None:
            return
        values = _values_of(self._optimizer)
        if values != self._sent:
            self._trainer.setOptimizer(self._optimizer)
            self._sent = values

    def optimizer_changed(self) -> None:
        """The optimizer has got new state from elsewhere."""
        self._state_is_new = True
        self._sent = None

    def _send_state(self) -> None:
        self._trainer.copyOptimizerStateToDevice()
        known: dict[str, Any] = next(iter(self._optimizer.state.values()), {})
        self._updates = int(known.get("step", 0))
        self._state_is_new = False

    def fetch_weights(self) -> None:
        """Bring the newest weights to the host."""
        executor = self._trainer
        if executor is not None and executor.isCompiled():
            executor.copyWeightsToHostIfNeeded()

    def fetch_optimizer(self) -> None:
        """Bring the optimizer's state to the host."""
        executor = self._trainer
        if executor is not None and executor.isCompiled() and not self._state_is_new:
            executor.copyOptimizerStateToHost(self._updates)

    # Reports -------------------------------------------------------------------------------------

    def report_to(self, folder: str) -> None:
        """Write a report of every program into ``folder``."""
        self._report = folder

    def _write_report(self, stage: Any, executor: Any) -> None:
        if self._report is None or id(executor) in self._reported or not executor.isCompiled():
            return
        self._reported.add(id(executor))
        write_report(
            self._report, "training" if stage == self._training_stage else "inference", executor
        )


def _shape_of(module: Any, optimizer: Any) -> Any:
    """What a program is made for: weights, which of them are trained, and modes of layers."""
    return (
        [(name, id(p), p.requires_grad) for name, p in module.named_parameters()],
        [name for name, _ in module.named_buffers()],
        [(m.training, getattr(m, "track_running_stats", None)) for m in module.modules()],
        optimizer and [[id(p) for p in group["params"]] for group in optimizer.param_groups],
    )


def _values_of(optimizer: Any) -> Any:
    if optimizer is None:
        return None
    return [
        [value for key, value in group.items() if key != "params"]
        for group in optimizer.param_groups
    ]
