// SPDX-License-Identifier: Apache-2.0
#ifdef TESSERA_HAVE_LLVM

#include "codegen/jit.h"

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/TargetParser/Host.h>

#include <chrono>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "codegen/region.h"
#include "kernels/isa.h"

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
  std::mutex lock;
  std::unique_ptr<llvm::orc::LLJIT> lljit;
  std::string cpu, features;
  JitTarget target;
  std::unordered_map<std::string, LoopFn> functions;
  CodegenStats stats;

  void start() {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    auto machine = check(llvm::orc::JITTargetMachineBuilder::detectHost());
    const bool wide = kernels::cpu_has_avx512();
    if (!wide) machine.addFeatures({"-avx512f"});
    machine.setCodeGenOptLevel(llvm::CodeGenOptLevel::Default);
    target.avx512 = wide;
    cpu = machine.getCPU();
    features = machine.getFeatures().getString();
    lljit = check(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(std::move(machine)).create());
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

LoopFn jit_function(const std::string& key,
                    const std::function<void(llvm::Module&, const std::string&, const JitTarget&)>& fill) {
  Jit& j = jit();
  std::lock_guard guard(j.lock);
  auto found = j.functions.find(key);
  if (found != j.functions.end()) {
    ++j.stats.reused;
    return found->second;
  }
  const double begin = now_ms();
  if (!j.lljit) j.start();
  const std::string name = fmt::format("region{}", j.functions.size());
  auto context = std::make_unique<llvm::LLVMContext>();
  auto module = std::make_unique<llvm::Module>(name, *context);
  module->setDataLayout(j.lljit->getDataLayout());
  module->setTargetTriple(j.lljit->getTargetTriple().str());
  fill(*module, name, j.target);
  for (llvm::Function& f : *module) {
    if (f.isDeclaration()) continue;
    f.addFnAttr("target-cpu", j.cpu);
    f.addFnAttr("target-features", j.features);
    f.addFnAttr("prefer-vector-width", "512");
    f.addFnAttr("min-legal-vector-width", "512");
    f.addFnAttr(llvm::Attribute::NoUnwind);
#ifndef NDEBUG
    std::string text;
    llvm::raw_string_ostream out(text);
    invariant(!llvm::verifyFunction(f, &out), "[codegen] {}", out.str());
#endif
  }
  check(j.lljit->addIRModule(llvm::orc::ThreadSafeModule(std::move(module), std::move(context))));
  auto fn = check(j.lljit->lookup(name)).toPtr<LoopFn>();
  j.functions.emplace(key, fn);
  ++j.stats.compiled;
  j.stats.compile_ms += now_ms() - begin;
  return fn;
}

}  // namespace codegen

CodegenStats codegen_stats() {
  codegen::Jit& j = codegen::jit();
  std::lock_guard guard(j.lock);
  return j.stats;
}

}  // namespace tessera

#endif  // TESSERA_HAVE_LLVM
