# SPDX-License-Identifier: Apache-2.0
"""``IPUStrategy``: runs the steps of a LightningModule as compiled programs, and keeps weights,
optimizer state and data in step with them."""

from typing import Any

import torch

from lightning_ipu import _checks
from lightning_ipu._one_process import OneProcess
from lightning_ipu._options import generated_options, run_options
from lightning_ipu._tree import mapped

from ..accelerators.ipu import _IPU_AVAILABLE  # noqa: F401
from ..core.optimizer import _MockOptimizer
from ..overrides.distributed import _IndexBatchSamplerWrapper
from ..plugins.precision.ipu import IPUPrecision
from ..trainer.states import RunningStage, TrainerFn
from ..utilities.exceptions import MisconfigurationException
from ..utilities.model_helpers import is_overridden
from .parallel import ParallelStrategy
from .strategy import Strategy

_METHODS = {
    RunningStage.TRAINING: "training_step",
    RunningStage.SANITY_CHECKING: "validation_step",
    RunningStage.VALIDATING: "validation_step",
    RunningStage.TESTING: "test_step",
    RunningStage.PREDICTING: "predict_step",
}
_STAGES = {
    TrainerFn.VALIDATING: RunningStage.VALIDATING,
    TrainerFn.TESTING: RunningStage.TESTING,
    TrainerFn.PREDICTING: RunningStage.PREDICTING,
}


def _cycles_betas(scheduler: Any) -> bool:
    return bool(
        getattr(scheduler, "cycle_momentum", False) and getattr(scheduler, "use_beta1", True)
    )


class IPUStrategy(OneProcess, ParallelStrategy):
    """Replicas on IPUs, in one process.

    Args:
        accelerator: an ``IPUAccelerator``; the trainer's if None.
        device_iterations: weight updates, or forward passes, of one run.
        autoreport: write a report of every program.
        autoreport_dir: where to; implies ``autoreport``.
        parallel_devices: the IPUs, as numbers or devices; the trainer's ``devices`` if None.
        cluster_environment: accepted; all replicas are in this process.
        checkpoint_io: how checkpoints are written.
        precision_plugin: an ``IPUPrecision``.
        training_opts: options of the training program, used as they are.
        inference_opts: options of the other programs, used as they are.
        allow_batch_transfer_hooks: call ``transfer_batch_to_device`` and
            ``on_after_batch_transfer``, on the host and with the batch of all replicas.
    """

    strategy_name = "ipu_strategy"

    def __init__(
        self,
        accelerator: Any = None,
        device_iterations: int = 1,
        autoreport: bool = False,
        autoreport_dir: str | None = None,
        parallel_devices: list[Any] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        training_opts: Any = None,
        inference_opts: Any = None,
        allow_batch_transfer_hooks: bool = False,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
        )
        if device_iterations < 1:
            raise ValueError(f"device_iterations must be at least 1, not {device_iterations}")
        self.device_iterations = device_iterations
        self.autoreport = autoreport or autoreport_dir is not None
        self.autoreport_dir = autoreport_dir
        self.allow_batch_transfer_hooks = allow_batch_transfer_hooks
        self._user_options = {True: training_opts, False: inference_opts}
        self._generated: dict[bool, Any] = {}
        self._accumulation = 1
        self._restore: list[Any] = []
        self._programs: Any = None
        self._epoch: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        # Programs belong to this process, and the next run makes new ones.
        state.update(_programs=None, _restore=[], _generated={})
        return state

    # What there is -------------------------------------------------------------------------------

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """The IPUs."""
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[Any] | None) -> None:
        self._parallel_devices = devices and [
            torch.device("ipu", d) if isinstance(d, int) else d for d in devices
        ]

    @property
    def precision_plugin(self) -> IPUPrecision:
        """Always an ``IPUPrecision``."""
        plugin = self._precision_plugin
        return plugin if isinstance(plugin, IPUPrecision) else IPUPrecision()

    @precision_plugin.setter
    def precision_plugin(self, plugin: Any) -> None:
        if plugin is not None and not isinstance(plugin, IPUPrecision):
            plugin = IPUPrecision(plugin.precision)
        self._precision_plugin = plugin

    @property
    def root_device(self) -> torch.device:
        """Where the host's tensors are."""
        return torch.device("cpu")

    @property
    def replication_factor(self) -> int:
        """The number of replicas."""
        for training in (True, False):
            if self._user_options[training] is not None:
                return self._user_options[training].replication_factor
        return len(self.parallel_devices or [None])

    @property
    def training_opts(self) -> Any:
        """Options of the training program."""
        return self._options(True)

    @property
    def inference_opts(self) -> Any:
        """Options of the other programs."""
        return self._options(False)

    def _options(self, training: bool) -> Any:
        if self._user_options[training] is not None:
            return self._user_options[training]
        if training not in self._generated:
            self._generated[training] = generated_options(
                self.replication_factor,
                self.device_iterations,
                self._accumulation if training else 1,
            )
        return self._generated[training]

    @property
    def poptorch_models(self) -> dict[RunningStage, Any]:
        """The executor of each stage."""
        return {} if self._programs is None else self._programs.executors()

    @property
    def _trainer(self) -> Any:
        module = self.lightning_module
        assert module is not None, "There is no run: the trainer has not given the strategy a model"
        return module.trainer

    # A run ---------------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Check the trainer and take over what Lightning would do per micro-batch."""
        super().setup_environment()
        trainer = self._trainer
        _checks.check_trainer(
            trainer,
            self.lightning_module,
            trainer.datamodule,
            MisconfigurationException,
            is_overridden,
            self.allow_batch_transfer_hooks,
        )
        self._undo()
        self._generated = {}
        self._accumulation = 1
        if trainer.state.fn == TrainerFn.FITTING:
            self._take_accumulation(trainer)
        self._take_loaders(trainer)

    def _take_accumulation(self, trainer: Any) -> None:
        wanted = trainer.accumulate_grad_batches
        given = self._user_options[True]
        if given is not None:
            factor = given.Training.gradient_accumulation
            if wanted not in (1, factor):
                raise MisconfigurationException(
                    f"accumulate_grad_batches={wanted} of the Trainer, but "
                    f"gradientAccumulation({factor}) in training_opts: give one of them."
                )
            wanted = factor
        self._accumulation = wanted
        before = trainer.accumulate_grad_batches
        self._restore.append(lambda: setattr(trainer, "accumulate_grad_batches", before))
        # One batch of the loader is one update.
        trainer.accumulate_grad_batches = 1

    def _take_loaders(self, trainer: Any) -> None:
        from lightning_ipu import _loaders

        connector = trainer._data_connector

        def prepare(dataloader: Any, shuffle: bool, mode: RunningStage) -> Any:
            training = mode == RunningStage.TRAINING
            return _loaders.converted(
                dataloader,
                self._options(training),
                training=training,
                tracker=_IndexBatchSamplerWrapper if mode == RunningStage.PREDICTING else None,
                refuse=MisconfigurationException,
            )

        connector._prepare_dataloader = prepare
        self._restore.append(lambda: connector.__dict__.pop("_prepare_dataloader", None))

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the optimizer, of which there can be one."""
        super().setup_optimizers(trainer)
        _checks.check_optimizers(self.optimizers, MisconfigurationException)

    def setup(self, trainer: Any) -> None:
        """Make the programs of this run; they are compiled by their first batches."""
        from lightning_ipu._programs import Programs  # of no use to a trainer on the CPU

        super().setup(trainer)
        module = trainer.lightning_module
        fitting = trainer.state.fn == TrainerFn.FITTING
        _checks.check_steps(module, _METHODS.values(), MisconfigurationException)
        if fitting:
            _checks.check_module(module, MisconfigurationException, is_overridden)
        if self._programs is not None:
            self._programs.destroy()
        self._programs = Programs(
            module,
            _METHODS,
            RunningStage.TRAINING,
            self._make_options,
            lambda: self.precision_plugin.capture_context(module),
        )
        if self.autoreport:
            self._programs.report_to(self.autoreport_dir or ".")
        self._epoch = None
        if fitting:
            optimizer = self.optimizers[0] if self.optimizers else None
            if isinstance(optimizer, _MockOptimizer):  # configure_optimizers returned None
                optimizer = None
            if optimizer is not None:
                if any(_cycles_betas(c.scheduler) for c in self.lr_scheduler_configs):
                    self._programs.let_vary(optimizer, "betas")
                self._programs.set_clipping(
                    optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
                )
                # Lightning skips what it cannot call: there are no gradients on the host.
                module.__dict__["optimizer_zero_grad"] = None
                self._restore.append(lambda: module.__dict__.pop("optimizer_zero_grad", None))
            self._programs.add_training(optimizer)
            self._programs.step(RunningStage.VALIDATING, 0)
            if trainer.num_sanity_val_steps:
                self._programs.step(RunningStage.SANITY_CHECKING, 0)
        else:
            self._programs.step(_STAGES[trainer.state.fn], 0)

    def _make_options(self, stage: RunningStage, single: bool) -> Any:
        return run_options(self._options(stage == RunningStage.TRAINING), single)

    def on_exception(self, exception: BaseException) -> None:
        """Put everything back."""
        self._undo()
        super().on_exception(exception)

    def teardown(self) -> None:
        """Bring weights and state home, and free the programs."""
        self._undo()
        if self._programs is not None:
            self._programs.destroy()
        if self.cluster_environment is not None:
            self.cluster_environment.teardown()
        Strategy.teardown(self)

    def _undo(self) -> None:
        while self._restore:
            self._restore.pop()()

    # Steps ---------------------------------------------------------------------------------------

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the training program: forward, backward and the update of the weights."""
        if not self.precision_plugin.is_updating:
            raise MisconfigurationException(
                "`optimizer_step` was overridden and runs the closure without "
                "`optimizer.step(closure)`. On IPUs the update of the weights is a part of the "
                "step: call `optimizer.step(closure)` for every batch."
            )
        return self._programs.train(*args, *kwargs.values())

    def _evaluate(self, stage: RunningStage, args: Any) -> Any:
        from lightning_ipu._loaders import micro_rows as micro_rows_of

        trainer = self._trainer
        index = args[2] if len(args) > 2 else 0

        def micro_rows() -> int | None:
            loop = trainer._active_loop
            if stage in (RunningStage.VALIDATING, RunningStage.SANITY_CHECKING):
                loop = trainer._evaluation_loop if loop is trainer.fit_loop else loop
            loaders = loop._combined_loader.flattened
            return micro_rows_of(loaders[index]) if index < len(loaders) else None

        return self._programs.evaluate(stage, index, args, micro_rows)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the validation program."""
        sanity = self._trainer.sanity_checking
        stage = RunningStage.SANITY_CHECKING if sanity else RunningStage.VALIDATING
        return self._evaluate(stage, (*args, *kwargs.values()))

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the test program."""
        return self._evaluate(RunningStage.TESTING, (*args, *kwargs.values()))

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the prediction program."""
        return self._evaluate(RunningStage.PREDICTING, (*args, *kwargs.values()))

    def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        """The batch in the types of the program; it stays on the host."""
        if self.allow_batch_transfer_hooks and self.lightning_module is not None:
            batch = super().batch_to_device(batch, device, dataloader_idx)
        plugin = self.precision_plugin
        if plugin.precision == "32-true":
            return batch
        return mapped(
            batch, lambda x: plugin.convert_batch(x) if isinstance(x, torch.Tensor) else x
        )

    # Weights and optimizer -----------------------------------------------------------------------

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Make another program if the model has changed since the last epoch."""
        epoch = self._trainer.current_epoch
        if epoch != self._epoch or batch_idx == 0:
            self._epoch = epoch
            self._programs.renew(RunningStage.TRAINING, batch)

    def _pause(self) -> None:
        if self._programs is not None:
            self._programs.detach()

    def _change(self) -> None:
        self._pause()
        self._programs.renew(self._trainer.state.stage)

    on_validation_start = on_test_start = on_predict_start = _change
    on_train_end = on_validation_end = on_test_end = on_predict_end = _pause

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The newest weights."""
        if self._programs is not None:
            self._programs.fetch_weights()
        return super().lightning_module_state_dict()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The newest state, in the form that torch's optimizer has."""
        if self._programs is not None:
            self._programs.fetch_optimizer()
        return super().optimizer_state(optimizer)

    def load_model_state_dict(self, checkpoint: Any, strict: bool = True) -> None:
        """Load weights, which the programs take over."""
        if self._programs is not None:
            self._programs.fetch_weights()
        super().load_model_state_dict(checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Load state, which the program takes over."""
        super().load_optimizer_state_dict(checkpoint)
        if self._programs is not None:
            self._programs.optimizer_changed()

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Make the name known."""
        strategy_registry.register(cls.strategy_name, cls, description="Replicas on virtual IPUs")
