// SPDX-License-Identifier: Apache-2.0
#ifdef TESSERA_HAVE_LLVM

#include "codegen/jit.h"

#include <llvm/ADT/StringSet.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/Orc/CompileUtils.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/build.h"
#include "base/checksum.h"
#include "base/error.h"
#include "codegen/code.h"
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

constexpr std::string_view kSymbol = "tessera_at_";

// Finds the functions of this binary that symbol_of has named.
class BinarySymbols final : public llvm::orc::DefinitionGenerator {
 public:
  llvm::Error tryToGenerate(llvm::orc::LookupState&, llvm::orc::LookupKind,
                            llvm::orc::JITDylib& library, llvm::orc::JITDylibLookupFlags,
                            const llvm::orc::SymbolLookupSet& asked) override {
    llvm::orc::SymbolMap found;
    for (const auto& [symbol, flags] : asked) {
      llvm::StringRef name = *symbol;
      uint64_t offset = 0;
      if (!name.consume_front(kSymbol) || name.getAsInteger(16, offset)) continue;
      found[symbol] = {llvm::orc::ExecutorAddr(this_binary().base + offset),
                       llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
    }
    return found.empty() ? llvm::Error::success()
                         : library.define(llvm::orc::absoluteSymbols(std::move(found)));
  }
};

struct Jit {
  std::mutex lock;  // of everything below
  std::optional<llvm::orc::JITTargetMachineBuilder> machine;
  std::unique_ptr<llvm::orc::LLJIT> lljit;
  std::unordered_map<std::string, LoopFn> functions;
  // By key: what `functions` were linked from, and what others were offered, how often.
  std::unordered_map<std::string, std::string> objects;
  std::unordered_map<std::string, std::pair<std::string, int>> offered;
  CodegenStats stats;

  llvm::orc::JITTargetMachineBuilder& host() {
    if (!machine) {
      llvm::InitializeNativeTarget();
      llvm::InitializeNativeTargetAsmPrinter();
      machine = check(llvm::orc::JITTargetMachineBuilder::detectHost());
      if (kernels::host_isa() == kernels::Isa::kV3) machine->addFeatures({"-avx512f"});
      machine->setCodeGenOptLevel(llvm::CodeGenOptLevel::Default);
    }
    return *machine;
  }
  void start() {
    lljit = check(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(host()).create());
    lljit->getMainJITDylib().addGenerator(std::make_unique<BinarySymbols>());
  }
  LoopFn link(const std::string& key, const std::string& name, std::string object) {
    const std::string& kept = objects[key] = std::move(object);
    check(lljit->addObjectFile(llvm::MemoryBuffer::getMemBuffer(kept, name, false)));
    return functions[key] = check(lljit->lookup(name)).toPtr<LoopFn>();
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
  // The same in every process: object files are kept.
  const std::string name = "region_" + Digest().part(key).hex().substr(0, 32);
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
    if (auto offer = j.offered.find(key); offer != j.offered.end()) {
      const LoopFn f = j.link(key, name, offer->second.first);
      ++j.stats.linked;
      j.stats.compile_ms += now_ms() - begin;
      return f;
    }
    if (!machine) machine = check(j.host().createTargetMachine());
  }
  const std::unique_ptr<llvm::MemoryBuffer> object = compile(*machine, name, fill);
  std::lock_guard guard(j.lock);
  LoopFn& f = j.functions[key];
  if (f == nullptr) {
    f = j.link(key, name, object->getBuffer().str());
    ++j.stats.compiled;
  }
  j.stats.compile_ms += now_ms() - begin;
  return f;
}

std::string symbol_of(const void* function) {
  return fmt::format("{}{:x}", kSymbol, reinterpret_cast<uintptr_t>(function) - this_binary().base);
}

}  // namespace codegen

CodegenStats codegen_stats() {
  codegen::Jit& j = codegen::jit();
  std::lock_guard guard(j.lock);
  return j.stats;
}

namespace {

struct Target {
  std::string build;  // of this binary, of LLVM, and which of its code regions may call
  llvm::StringSet<> features;
};

// The build, then a feature per line.
Target read_target(const std::string& text) {
  Target out;
  const auto [build, features] = llvm::StringRef(text).split('\n');
  out.build = build.str();
  llvm::SmallVector<llvm::StringRef> lines;
  features.split(lines, '\n', -1, false);
  for (llvm::StringRef line : lines) out.features.insert(line);
  return out;
}

}  // namespace

std::string code_target() {
  codegen::Jit& j = codegen::jit();
  std::lock_guard guard(j.lock);
  std::string out =
      fmt::format("build {} llvm {} avx512 {} bf16 {}\n", this_binary().build, LLVM_VERSION_STRING,
                  kernels::host_isa() == kernels::Isa::kV4, kernels::host_has_bf16_dots());
  std::vector<std::string> needed;
  for (const std::string& f : j.host().getFeatures().getFeatures())
    if (f.starts_with('+')) needed.push_back(f.substr(1));
  std::sort(needed.begin(), needed.end());
  for (const std::string& f : needed) out += f + '\n';
  return out;
}

bool code_runs_here(const std::string& target) {
  const Target here = read_target(code_target()), needed = read_target(target);
  return !this_binary().build.empty() && needed.build == here.build &&
         std::all_of(needed.features.begin(), needed.features.end(),
                     [&](const auto& f) { return here.features.contains(f.getKey()); });
}

std::optional<std::string> code_of(const std::string& key) {
  codegen::Jit& j = codegen::jit();
  std::lock_guard guard(j.lock);
  auto found = j.objects.find(key);
  if (found == j.objects.end()) return std::nullopt;
  return found->second;
}

OfferedCode::OfferedCode(std::vector<std::pair<std::string, std::string>> objects) {
  codegen::Jit& j = codegen::jit();
  std::lock_guard guard(j.lock);
  for (auto& [key, object] : objects) {
    auto& [kept, times] = j.offered[key];
    if (times++ == 0) kept = std::move(object);
    keys_.push_back(std::move(key));
  }
}

OfferedCode::~OfferedCode() {
  codegen::Jit& j = codegen::jit();
  std::lock_guard guard(j.lock);
  for (const std::string& key : keys_) {
    auto at = j.offered.find(key);
    if (--at->second.second == 0) j.offered.erase(at);
  }
}

}  // namespace tessera

#endif  // TESSERA_HAVE_LLVM
