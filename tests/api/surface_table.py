# SPDX-License-Identifier: Apache-2.0
"""The names that programs may use, with their parameters, as PopTorch 3.4 has them. Lines that are
indented go on from the line before; names are inside the package ``poptorch``."""

NAMES = r"""
AsynchronousDataAccessor(dataset, buffer_size=3, miss_sleep_time_in_ms=0.1,
    load_indefinitely=True, early_preload=False, sharing_strategy=SharingStrategy.ForkServer,
    rebatched_size=None)
AsynchronousDataAccessor.terminate()
Attribute(**kwargs)
BeginBlock(layer_to_call, user_id=None, ipu_id=None)
Block(user_id=None, ipu_id=None)
Block.useAutoId static ()
Block.start static (user_id=None, ipu_id=None)
BlockFunction(user_id=None, ipu_id=None)
BlockId data
CPU(layer_to_call, ID)
CPU.__call__(*input, **kwargs)
CPU.execute()
CPU.registerPersistentData()
ConfigFileError class
DataLoader(options, dataset, batch_size=1, shuffle=None, num_workers=0, drop_last=True,
    persistent_workers=None, auto_distributed_partitioning=True, mode=DataLoaderMode.Sync,
    async_options=None, rebatched_worker_size=None, batch_sampler=None, **kwargs)
DataLoader.terminate()
DataLoader.combinedBatchSize property
DataLoader.options property
ICustomArgParser class
ICustomArgParser.yieldTensors(struct)
ICustomArgParser.reconstruct(original_structure, tensor_iterator)
LegacyBeginBlockFn(layer_to_call, user_id=None, ipu_id=None)
LegacyBeginBlockFn.__call__(*input, **kwargs)
MultiConv()
MultiConv.availableMemoryProportions(value)
MultiConv.partialsTypes(value)
MultiConv.enableConvDithering(value)
MultiConv.planType(value)
MultiConv.perConvReservedTiles(value)
MultiConv.cycleBackOff(value)
NameScope(name)
Options()
Options.from_json(string)
Options.sourceLocationExcludes(excludes)
Options.appendToLocationExcludes(*excludes)
Options.showCompilationProgressBar(show=True)
Options.loadFromFile(filepath)
Options.relaxOptimizerAttributesChecks(relax=True)
Options.autoRoundNumIPUs(auto_round_num_ipus=True)
Options.deviceIterations(device_iterations)
Options.setExecutionStrategy(strategy)
Options.setAvailableMemoryProportion(available_memory_proportion)
Options.replicationFactor(replication_factor)
Options.inputReplicaGrouping(input_group_size, input_group_type)
Options.broadcastBuffers(broadcast_buffers=True)
Options.logDir(log_dir)
Options.maxRepeatLogs(max_lines)
Options.modelName(name)
Options.enableExecutableCaching(path)
Options.useIpuModel(use_model)
Options.connectionType(connection_type)
Options.syncPattern(sync_pattern)
Options.useIpuId(ipu_id)
Options.useOfflineIpuTarget(ipu_version=2)
Options.anchorTensor(short_name, long_name, output_mode=None, output_return_period=1)
Options.outputMode(output_mode, output_return_period=None)
Options.defaultOutputMode()
Options.randomSeed(random_seed)
Options.enableStableNorm(enabled)
Options.enableSyntheticData(enabled)
Options.logCycleCount(log_cycle_count)
Options.enableProfiling(profile_dir=None)
Options.disableModuleNamescope()
Options.updatableNamedBuffers(buffers)
Options.toDict()
Options.clone()
Options.TensorLocations property
Options.Distributed property
Options.Jit property
Options.Precision property
Options.Training property
Options._Popart property
ParallelPhasedExecution class
ParallelPhasedExecution.backendOptions()
ParallelPhasedExecution.sendTensorsOffChipAfterFwd(off_chip=True)
Phase(*arg)
Phase.stage(idx)
Phase.ipus(*ipus)
PipelinedExecution(*args)
PipelinedExecution.backendOptions()
PoplarExecutor(model, options, training, poptorch_version, optimizer=None, user_model=None)
PoplarExecutor.__call__(*args, **kwargs)
PoplarExecutor.load_state_dict(state_dict, strict=True)
PoplarExecutor.getTensorNames()
PoplarExecutor.getAnchoredTensor(short_name)
PoplarExecutor.copyWeightsToHostIfNeeded()
PoplarExecutor.copyWeightsToHost()
PoplarExecutor.copyWeightsToDevice()
PoplarExecutor.copyNamedBuffersToDevice()
PoplarExecutor.setOptimizer(optimizer)
PoplarExecutor.compile(*args, **kwargs)
PoplarExecutor.loadExecutable(filename)
PoplarExecutor.save(filename, export_model=True, save_rng_state=True)
PoplarExecutor.compileAndExport(filename, *args, export_model=True, **kwargs)
PoplarExecutor.cycleCount()
PoplarExecutor.compilationTime()
PoplarExecutor.getPerfCounters()
PoplarExecutor.getHostIpuLatency()
PoplarExecutor.getComputeLatency()
PoplarExecutor.getIpuHostLatency()
PoplarExecutor.getLatency()
PoplarExecutor.destroy()
PoplarExecutor.isAttachedToDevice()
PoplarExecutor.isCompiled()
PoplarExecutor.detachFromDevice()
PoplarExecutor.attachToDevice()
PoplarExecutor.model property
PoplarExecutor.options property
PoplarExecutor.rng_state property settable
SerialPhasedExecution class
SerialPhasedExecution.setTensorsLiveness(liveness)
SerialPhasedExecution.backendOptions()
ShardedExecution class
ShardedExecution.backendOptions()
Stage(*block_ids)
Stage.ipu(ipu)
Stage.blocks property
TensorLocationSettings class
TensorLocationSettings.minElementsForOffChip(min_elements)
TensorLocationSettings.minElementsForReplicatedTensorSharding(min_elements)
TensorLocationSettings.useOnChipStorage(use=True)
TensorLocationSettings.useReplicatedTensorSharding(use=True)
TensorLocationSettings.useIOTilesToLoad(use=True)
TensorLocationSettings.useIOTilesToStore(use=True)
cond(condition, then_body, then_inps, else_body, else_inps)
createPoptorchError(msg)
ctc_beam_search_decoder(probs, lengths, blank=0, beam_width=100, top_paths=1)
custom_op(inputs, name, domain, domain_version, example_outputs, attributes=None)
dynamic_slice(tensor, dim, start, size, step)
dynamic_update(input, src, dim, start, size)
for_loop(count, body, inputs)
fps(src, ptr, ratio=0.5, random_start=False)
identity_loss(x, reduction)
inferenceModel(model, options=None)
ipuHardwareIsAvailable(num_ipus=1)
ipuHardwareVersion()
ipu_print_tensor(tensor, title='', print_gradient=True, summarise_threshold=1000, edge_items=3,
    max_line_width=80, digits=4, float_format='auto', separator=', ', open_bracket='(',
    close_bracket=')')
isRunningOnIpu()
load(filename, edit_opts_fn=None)
module_repr(m)
nearest(x, y, batch_x=None, batch_y=None)
nop(tensor)
print(m)
recomputationCheckpoint(*tensors)
registerCustomArgParser(arg_data_type, arg_parser)
registerPostCompileHook(hook)
registerPreCompileHook(hook)
removeBlocks(module)
serializedMatMul(lhs, rhs, mode, factor=0, keep_precision=False)
setLogLevel(level)
set_available_memory(tensor, available_memory_proportion)
set_overlap_for_input(input_tensors, mode)
set_overlap_for_output(output_tensors, mode)
trainingModel(model, options=None, optimizer=None)
Error class
RecoverableError class
UnrecoverableError class
__version__ data
logger data
optim.VariableAttributes(variable_attributes, allowed_attributes)
optim.VariableAttributes.isConstant(attr)
optim.VariableAttributes.markAsConstant(attr)
optim.VariableAttributes.markAsVariable(attr)
optim.Optimizer()
optim.Optimizer.state_dict()
optim.Optimizer.load_state_dict(state)
optim.Optimizer.get_state_dict()
optim.Optimizer.set_state_dict(state)
optim.Optimizer.has_state()
optim.SGD(params, lr, momentum=None, dampening=None, weight_decay=None, nesterov=None,
    maximize=None, foreach=None, differentiable=None, loss_scaling=None, velocity_scaling=None,
    use_combined_accum=None, accum_type=None, velocity_accum_type=None, max_grad_norm=None)
optim.Adam(params, lr=None, betas=None, eps=None, weight_decay=None, amsgrad=None, foreach=None,
    maximize=None, capturable=None, differentiable=None, fused=None, loss_scaling=None,
    accum_type=None, first_order_momentum_accum_type=None,
    second_order_momentum_accum_type=None, max_grad_norm=None)
optim.AdamW(params, lr=None, betas=None, eps=None, weight_decay=None, amsgrad=None,
    maximize=None, foreach=None, capturable=None, differentiable=None, fused=None,
    loss_scaling=None, bias_correction=None, accum_type=None,
    first_order_momentum_accum_type=None, second_order_momentum_accum_type=None,
    max_grad_norm=None)
optim.RMSprop(params, lr=None, alpha=None, eps=None, weight_decay=None, momentum=None,
    centered=None, foreach=None, maximize=None, differentiable=None, loss_scaling=None,
    accum_type=None, first_order_momentum_accum_type=None,
    second_order_momentum_accum_type=None, use_tf_variant=None)
optim.LAMB(params, lr=None, betas=None, eps=None, weight_decay=None, bias_correction=None,
    loss_scaling=None, max_weight_norm=None, accum_type=None,
    first_order_momentum_accum_type=None, second_order_momentum_accum_type=None)
optim.LAMB.step(closure=None)
profiling.Channel(name)
profiling.Channel.instrument(obj, *methods)
profiling.Channel.tracepoint(name)
testing.allclose(ref, other)
options._JitOptions class
options._JitOptions.traceModel(trace_model)
options._PrecisionOptions(popart_options)
options._PrecisionOptions.halfFloatCasting(half_float_casting)
options._PrecisionOptions.runningStatisticsAlwaysFloat(value)
options._PrecisionOptions.enableFloatingPointExceptions(enabled)
options._PrecisionOptions.enableStochasticRounding(enabled)
options._PrecisionOptions.setPartialsType(dtype)
options._TrainingOptions(popart_options)
options._TrainingOptions.gradientAccumulation(gradient_accumulation)
options._TrainingOptions.accumulationAndReplicationReductionType(reduction_type)
options._TrainingOptions.setMeanAccumulationAndReplicationReductionStrategy(mean_reduction_strategy)
options._TrainingOptions.setAutomaticLossScaling(enabled)
options._TrainingOptions.setConvolutionDithering(enabled)
options._PopartOptions()
options._PopartOptions.checkIsFrozen(option=None)
options._PopartOptions.set(key, value)
options._PopartOptions.setEngineOptions(engine_options)
options._PopartOptions.setPatterns(patterns, level=2)
options._DistributedOptions()
options._DistributedOptions.disable()
options._DistributedOptions.setEnvVarNames(var_num_processes, var_process_id)
options._DistributedOptions.configureProcessId(process_id, num_processes)
options._DistributedOptions.processId property
options._DistributedOptions.numProcesses property
options._TensorLocationOptions class
options._TensorLocationOptions.numIOTiles(num_tiles)
options._TensorLocationOptions.setActivationLocation(location)
options._TensorLocationOptions.setWeightLocation(location)
options._TensorLocationOptions.setOptimizerLocation(location)
options._TensorLocationOptions.setAccumulatorLocation(location)
options._DefaultStageManager(auto_stage)
options._IExecutionStrategy.stage(block_id)
options._IExecutionStrategy.onStartTracing()
options._IExecutionStrategy.onEndTracing()
options._IExecutionStrategy.backendOptions()
options._IPhasedExecution(*phases)
options._IPhasedExecution.phase(phase)
options._IPhasedExecution.useSeparateBackwardPhase(use=True)
options._IPhasedExecution.backendOptions()
_options_impl.OptionsDict(**default_values)
_options_impl.OptionsDict.__call__(option)
_options_impl.OptionsDict.set(**kwargs)
_options_impl.OptionsDict.createOrSet(**kwargs)
_options_impl.OptionsDict.exists(option)
_options_impl.OptionsDict.deleteIfExists(option)
_options_impl.OptionsDict.checkIsFrozen(option=None)
_options_impl.OptionsDict.update(other)
_options_impl.OptionsDict.toDict()
"""

ENUMS = """
AutoStage IntEnum: SameAsIpu=0, AutoIncrement=1
CommGroupType IntEnum: All=0, Consecutive=1, Orthogonal=2, NoGrouping=3
ConnectionType IntEnum: Always=0, OnDemand=1, Never=2
DataLoaderMode IntEnum: Sync=0, Async=1, AsyncRebatched=2
HalfFloatCastingBehavior IntEnum: FloatDowncastToHalf=0, HalfUpcastToFloat=1, Default=2
Liveness IntEnum: AlwaysLive=0, OffChipAfterFwd=1, OffChipAfterFwdNoOverlap=2,
    OffChipAfterEachPhase=3
MatMulSerializationMode Enum: InputChannels=input_channels, ReducingDim=reducing_dim,
    OutputChannels=output_channels, Disabled=none
MeanReductionStrategy IntEnum: Running=0, Post=1, PostAndLoss=2
MultiConvPlanType IntEnum: Parallel=0, Serial=1
OutputMode IntEnum: Final=0, EveryN=1, All=2, Sum=3, Default=4
OverlapMode Enum: NoOverlap=no_overlap, OverlapAccumulationLoop=overlap_accumulation_loop,
    OverlapDeviceIterationLoop=overlap_device_iteration_loop
ReductionType IntEnum: Sum=0, Mean=1, NoReduction=2
SharingStrategy IntEnum: SharedMemory=0, FileSystem=1, Fork=2, ForkServer=3
SyncPattern IntEnum: Full=0, SinglePipeline=1, ReplicaAndLadder=2
VariableRetrievalMode IntEnum: OnePerGroup=0, AllReplicas=2
"""
