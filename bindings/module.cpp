// SPDX-License-Identifier: Apache-2.0
// poptorch._core: argument conversion, error translation, release of the GIL. No decisions here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <set>

#include "base/env.h"
#include "bindings.h"
#include "session/narrow.h"
#include "session/session.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessera {
namespace {

template <typename T>
T* pointer(uint64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

// One of a few words of an option, as the index in `words`.
template <typename T, size_t N>
T word_of(const char* key, const std::string& word, const std::pair<const char*, T> (&words)[N]) {
  for (const auto& [name, value] : words)
    if (word == name) return value;
  throw UserError(fmt::format("[options] {} cannot be \"{}\"", key, word));
}

OutputMode output_mode(const std::string& name) {
  return word_of<OutputMode>("output_mode", name,
                             {{"final", OutputMode::kFinal},
                              {"all", OutputMode::kAll},
                              {"sum", OutputMode::kSum},
                              {"every_n", OutputMode::kEveryN}});
}

nb::dict json_dict(const std::string& text) {
  nb::object value;
  try {
    value = nb::module_::import_("json").attr("loads")(text);
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_ValueError) && !e.matches(PyExc_RecursionError)) throw;
    throw UserError(fmt::format("[options] are not JSON: {}", e.what()));
  }
  user_check(nb::isinstance<nb::dict>(value), "[options] are not a dict in JSON");
  return nb::borrow<nb::dict>(value);
}

CompileOptions read_options(const std::string& text) {
  nb::dict d = json_dict(text);
  std::set<std::string> known{"seed"};  // belongs to the key of the program
  auto get = [&](const char* key, auto fallback) {
    known.insert(key);
    if (!d.contains(key) || d[key].is_none()) return fallback;
    decltype(fallback) value{};
    user_check(nb::try_cast(d[key], value), "[options] {} is no value for {}",
               nb::repr(d[key]).c_str(), key);
    return value;
  };
  CompileOptions o;
  o.training = get("training", false);
  o.mean_reduction = word_of<bool>("reduction", get("reduction", std::string("mean")),
                                   {{"mean", true}, {"sum", false}});
  o.running_mean = get("running_mean", false);
  o.stochastic_rounding = get("stochastic_rounding", false);
  o.half_partials = get("half_partials", false);
  o.run.check_floats = get("check_floats", false);
  o.run.device_iterations = get("device_iterations", int64_t{1});
  o.run.gradient_accumulation = get("gradient_accumulation", int64_t{1});
  o.run.replicas = get("replicas", int64_t{1});
  o.run.input_group = get("input_group", int64_t{1});
  o.run.orthogonal_groups = get("orthogonal_groups", false);
  using Grouped = std::tuple<std::string, int64_t, bool>;
  for (const auto& [name, size, orthogonal] : get("grouped", std::vector<Grouped>()))
    o.run.grouped.push_back({name, size, orthogonal});
  o.run.threads = get("threads", 1);
  o.run.output = {output_mode(get("output_mode", std::string("final"))),
                  get("output_return_period", int64_t{1})};
  using Rule = std::tuple<std::string, int64_t>;
  for (const auto& [mode, period] : get("outputs", std::vector<Rule>()))
    o.run.outputs.push_back({output_mode(mode), period});
  o.placement.strategy = word_of<Strategy>("strategy", get("strategy", std::string("one")),
                                           {{"one", Strategy::kOne},
                                            {"pipelined", Strategy::kPipelined},
                                            {"sharded", Strategy::kSharded},
                                            {"phased", Strategy::kPhased}});
  o.placement.recompute = get("recompute", true);
  o.placement.separate_backward = get("separate_backward", false);
  const int liveness = get("liveness", 0);
  user_check(liveness >= 0 && liveness <= static_cast<int>(Liveness::kOffChipAfterEachPhase),
             "[options] liveness cannot be {}", liveness);
  o.placement.liveness = static_cast<Liveness>(liveness);
  // On chip, sharded, and from how many elements on each.
  using Location = std::tuple<int, bool, int64_t, int64_t>;
  auto rule = [&](const char* key, LocationRule& to) {
    const auto [on_chip, sharded, off_chip_from, sharded_from] =
        get(key, Location(to.on_chip, to.sharded, to.min_off_chip, to.min_sharded));
    to = {on_chip, sharded, off_chip_from, sharded_from};
  };
  rule("location_activation", o.placement.activations);
  rule("location_weight", o.placement.weights);
  rule("location_optimizer", o.placement.optimizer);
  rule("location_accumulator", o.placement.accumulators);
  o.run.trace = env::trace();
  o.anchors = get("anchors", std::vector<std::string>());
  for (auto [key, value] : d)
    user_check(known.contains(nb::cast<std::string>(key)), "[options] {} is not known",
               nb::repr(key).c_str());
  return o;
}

using Port = std::tuple<std::string, std::string, std::vector<int64_t>>;

template <typename List>
std::vector<Port> ports(const List& list) {
  std::vector<Port> out;
  for (const auto& p : list) out.emplace_back(p.name, std::string(name_of(p.dtype)), p.shape);
  return out;
}

nb::object literal(const Arg& a) {
  switch (a.kind) {
    case Arg::Kind::kNone:
      return nb::none();
    case Arg::Kind::kBool:
      return nb::bool_(a.i != 0);
    case Arg::Kind::kInt:
      return nb::int_(a.i);
    case Arg::Kind::kFloat:
      return nb::float_(a.f);
    case Arg::Kind::kString:
      return nb::str(a.s.c_str());
    case Arg::Kind::kDType:
      return nb::make_tuple("dtype", std::string(name_of(static_cast<DType>(a.i))));
    case Arg::Kind::kOperand:
      return nb::make_tuple("in", a.i);
    case Arg::Kind::kList: {
      nb::list out;
      for (const Arg& x : a.list) out.append(literal(x));
      return out;
    }
  }
  return nb::none();
}

nb::object tensor_info(const Engine& e, const HostCallInfo& call, const TensorRef& t) {
  return nb::make_tuple(reinterpret_cast<uintptr_t>(e.address(call, t)),
                        std::string(name_of(t.dtype)), t.shape, t.strides);
}

nb::list host_calls(const Engine& e) {
  nb::list out;
  for (const HostCallInfo& h : e.host_calls()) {
    nb::dict d;
    nb::list args, inputs, outputs;
    for (const Arg& a : h.desc.args.list) args.append(literal(a));
    for (const TensorRef& t : h.desc.inputs) inputs.append(tensor_info(e, h, t));
    for (const TensorRef& t : h.desc.outputs) outputs.append(tensor_info(e, h, t));
    d["index"] = h.index;
    d["target"] = h.desc.target;
    d["where"] = h.desc.where;
    d["args"] = args;
    d["inputs"] = inputs;
    d["outputs"] = outputs;
    out.append(d);
  }
  return out;
}

// The compiled program with the Python callbacks it holds.
class PyProgram {
 public:
  PyProgram(const std::string& text, const std::string& options, const nb::dict& constants,
            nb::object progress) {
    std::unordered_map<std::string, Constant> blobs;
    for (auto [name, value] : constants) {
      auto [address, bytes] = nb::cast<std::tuple<uint64_t, int64_t>>(value);
      blobs[nb::cast<std::string>(name)] = {pointer<const void>(address), bytes};
    }
    CompileOptions o = read_options(options);
    std::function<void(int)> report;
    if (!progress.is_none())
      report = [&progress](int percent) {
        nb::gil_scoped_acquire gil;
        progress(percent);
      };
    nb::gil_scoped_release release;
    try {
      session_ = std::make_unique<Session>(text, o, blobs, report);
    } catch (const std::bad_alloc&) {
      throw MemoryError("[memory] no memory left while compiling. Try: a smaller model");
    }
  }

  Session& session() { return *session_; }

  void set_host_call(int index, nb::callable fn) {
    host_.resize(std::max<size_t>(host_.size(), static_cast<size_t>(index) + 1));
    host_[index] = std::move(fn);
    nb::handle call = host_[index];
    session_->engine().set_host_call(index, [call] {
      nb::gil_scoped_acquire gil;
      call();
    });
  }

  void run(const std::vector<uint64_t>& inputs, const std::vector<uint64_t>& outputs) {
    std::vector<const void*> in;
    std::vector<void*> out;
    for (uint64_t a : inputs) in.push_back(pointer<const void>(a));
    for (uint64_t a : outputs) out.push_back(pointer<void>(a));
    auto last = std::chrono::steady_clock::now();
    auto poll = [&last] {
      auto now = std::chrono::steady_clock::now();
      if (now - last < std::chrono::milliseconds(50)) return false;
      last = now;
      nb::gil_scoped_acquire gil;
      return PyErr_CheckSignals() != 0;
    };
    bool interrupted = false;
    {
      nb::gil_scoped_release release;
      try {
        session_->engine().run(in, out, poll);
      } catch (const Interrupted&) {
        interrupted = true;
      }
    }
    if (!interrupted) return;
    if (PyErr_Occurred()) throw nb::python_error();
    throw Interrupted("the run was interrupted");
  }

 private:
  std::unique_ptr<Session> session_;
  std::vector<nb::object> host_;
};

}  // namespace
}  // namespace tessera

NB_MODULE(_core, m) {
  using namespace tessera;
  m.doc() = "The compiler and runtime of Tessera.";
  // The traceback of an exception that ends the process keeps programs alive.
  nb::set_leak_warnings(false);
  bind_errors(m);
  m.def("native_ops", &native_ops, "Text names of the ops that run natively.");
  m.def(
      "narrow",
      [](uint64_t from, uint64_t to, int64_t count, bool integers) {
        nb::gil_scoped_release release;
        return integers ? narrow(pointer<const int64_t>(from), pointer<int32_t>(to), count)
                        : narrow(pointer<const double>(from), pointer<float>(to), count);
      },
      "from"_a, "to"_a, "count"_a, "integers"_a, "Whether all values of 64 bits fit into 32 bits.");
  nb::class_<PyProgram>(m, "Program")
      .def_prop_ro("inputs",
                   [](PyProgram& p) { return ports(p.session().engine().program().inputs); })
      .def_prop_ro("outputs",
                   [](PyProgram& p) { return ports(p.session().engine().program().outputs); })
      .def_prop_ro("states",
                   [](PyProgram& p) {
                     const Engine& e = p.session().engine();
                     std::vector<StateDesc> states = e.program().states;
                     for (StateDesc& s : states) s.shape = e.state_shape(s);
                     return ports(states);
                   })
      .def("write_state",
           [](PyProgram& p, const std::string& name, uint64_t address, int64_t bytes) {
             p.session().engine().write_state(name, pointer<const void>(address), bytes);
           })
      .def("read_state",
           [](PyProgram& p, const std::string& name, uint64_t address, int64_t bytes) {
             p.session().engine().read_state(name, pointer<void>(address), bytes);
           })
      .def("host_calls", [](PyProgram& p) { return host_calls(p.session().engine()); })
      .def("set_host_call", &PyProgram::set_host_call)
      .def("interrupt", [](PyProgram& p) { p.session().engine().interrupt(); })
      .def("set_profiling", [](PyProgram& p, bool on) { p.session().engine().set_profiling(on); })
      .def_prop_ro("tensor_names", [](PyProgram& p) { return p.session().tensor_names(); })
      .def_prop_ro("last_run_seconds",
                   [](PyProgram& p) { return p.session().engine().last_run_seconds(); })
      .def_prop_ro("times",
                   [](PyProgram& p) {
                     std::vector<std::tuple<double, double, double, double>> out;
                     for (const MicroTimes& t : p.session().engine().times())
                       out.emplace_back(t.input, t.input_complete, t.output, t.output_complete);
                     return out;
                   })
      .def("summary", [](PyProgram& p) { return p.session().summary(); })
      .def("run", &PyProgram::run, "inputs"_a, "outputs"_a);
  m.def(
      "compile",
      [](const std::string& text, const std::string& options, const nb::dict& constants,
         nb::object progress) {
        return new PyProgram(text, options, constants, std::move(progress));
      },
      "text"_a, "options_json"_a, "constants"_a, "progress"_a = nb::none(),
      nb::rv_policy::take_ownership);
}
