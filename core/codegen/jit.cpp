// SPDX-License-Identifier: Apache-2.0
#ifdef TESSERA_HAVE_LLVM

#include "codegen/jit.h"

#include <llvm/ExecutionEngine/Orc/CompileUtils.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "codegen/region.h"
#include "kernels/dispatch.h"

namespace tessera {
namespace codegen {
namespace {

template <typename T>
T check(llvm::Expected<T> value) {
  if (value) return std::move(*value);
  throw InternalError("internal error: [codegen] " + llvm::toString(value.takeError()));
}
void check(llvm::Error error) {
  if (error) throw InternalError("internal error: [codegen] " + llvm::toString(std::move(error)));
}

struct Jit {
  std::mutex lock;  // of everything below
  std::optional<llvm::orc::JITTargetMachineBuilder> machine;
  std::unique_ptr<llvm::orc::LLJIT> lljit;
  std::unordered_map<std::string, LoopFn> functions;
  CodegenStats stats;
  int64_t names = 0;

  void start() {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    machine = check(llvm::orc::JITTargetMachineBuilder::detectHost());
    if (kernels::host_isa() == kernels::Isa::kV3) machine->addFeatures({"-avx512f"});
    machine->setCodeGenOptLevel(llvm::CodeGenOptLevel::Default);
    lljit = check(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(*machine).create());
  }
};

// Never destroyed: kernels may still be running in other threads when the process ends.
Jit& jit() {
  static Jit& instance = *new Jit;
  return instance;
}

double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

namespace {

using Fill = std::function<void(llvm::Module&, const std::string&, const JitTarget&)>;

std::unique_ptr<llvm::MemoryBuffer> compile(llvm::TargetMachine& machine, const std::string& name,
                                            const Fill& fill) {
  llvm::LLVMContext context;
  llvm::Module module(name, context);
  module.setDataLayout(machine.createDataLayout());
  module.setTargetTriple(machine.getTargetTriple().str());
  const bool avx512 = kernels::host_isa() == kernels::Isa::kV4;
  fill(module, name, {avx512, kernels::host_has_bf16_dots()});
  for (llvm::Function& f : module) {
    if (f.isDeclaration()) continue;
    f.addFnAttr("target-cpu", machine.getTargetCPU());
    f.addFnAttr("target-features", machine.getTargetFeatureString());
    f.addFnAttr("prefer-vector-width", "512");
    f.addFnAttr("min-legal-vector-width", "512");
    f.addFnAttr(llvm::Attribute::NoUnwind);
#ifndef NDEBUG
    std::string text;
    llvm::raw_string_ostream out(text);
    invariant(!llvm::verifyFunction(f, &out), "[codegen] {}", out.str());
#endif
  }
  return check(llvm::orc::SimpleCompiler(machine)(module));
}

}  // namespace

LoopFn jit_function(const std::string& key, const Fill& fill) {
  const double begin = now_ms();
  Jit& j = jit();
  std::string name;
  // One per thread, so that several threads can compile at once; only linking is done under the
  // lock.
  static thread_local std::unique_ptr<llvm::TargetMachine> machine;
  {
    std::lock_guard guard(j.lock);
    auto found = j.functions.find(key);
    if (found != j.functions.end()) {
      ++j.stats.reused;
      return found->second;
    }
    if (!j.lljit) j.start();
    if (!machine) machine = check(j.machine->createTargetMachine());
    name = fmt::format("region{}", j.names++);
  }
  std::unique_ptr<llvm::MemoryBuffer> object = compile(*machine, name, fill);
  std::lock_guard guard(j.lock);
  auto [at, is_new] = j.functions.emplace(key, nullptr);
  if (is_new) {
    check(j.lljit->addObjectFile(std::move(object)));
    at->second = check(j.lljit->lookup(name)).toPtr<LoopFn>();
    ++j.stats.compiled;
  }
  j.stats.compile_ms += now_ms() - begin;
  return at->second;
}

}  // namespace codegen

CodegenStats codegen_stats() {
  codegen::Jit& j = codegen::jit();
  std::lock_guard guard(j.lock);
  return j.stats;
}

}  // namespace tessera

#endif  // TESSERA_HAVE_LLVM
