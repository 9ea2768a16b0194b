// SPDX-License-Identifier: Apache-2.0
// poptorch._core: argument conversion, error translation, release of the GIL. No decisions here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "base/settings.h"
#include "bindings.h"
#include "session/narrow.h"
#include "session/op_rows.h"
#include "session/session.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessera {
namespace {

template <typename T>
T* pointer(uint64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

Settings read_settings(nb::handle options) {
  user_check(nb::isinstance<nb::dict>(options), "[options] are not a dict");
  Settings out;
  for (auto [key, value] : nb::borrow<nb::dict>(options)) {
    std::string name;
    user_check(nb::try_cast(key, name), "[options] {} is not known", nb::repr(key).c_str());
    out.set(name, argument(name, value));
  }
  return out;
}

std::vector<std::tuple<std::string, bool>> dtypes() {
  return {
#define ROW(name, text, bytes, cls) {text, DTypeClass::cls != DTypeClass::kOpaque},
      TESSERA_DTYPES(ROW)
#undef ROW
  };
}

using Port = std::tuple<std::string, std::string, std::vector<int64_t>>;

template <typename List>
std::vector<Port> ports(const List& list) {
  std::vector<Port> out;
  for (const auto& p : list) out.emplace_back(p.name, std::string(name_of(p.dtype)), p.shape);
  return out;
}

// A state of a program: what it is for, and whom it belongs to.
struct PyState {
  std::string name, dtype;
  Dims shape;  // on the host
  std::string kind, what;
  nb::object param = nb::none(), group = nb::none();
};

std::vector<PyState> states(const Engine& e) {
  std::vector<PyState> out;
  for (const StateDesc& s : e.program().states) {
    const Source& from = s.source;
    PyState& state =
        out.emplace_back(PyState{s.name, std::string(name_of(s.dtype)), e.state_shape(s),
                                 std::string(text_of(from.kind)), from.name});
    if (!from.param.empty()) state.param = nb::cast(from.param);
    if (from.group >= 0) state.group = nb::cast(from.group);
  }
  return out;
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
  PyProgram(const std::string& text, nb::handle options, const nb::dict& constants,
            nb::object progress, const std::string& cache, const std::string& creator) {
    Constants blobs;
    for (auto [name, value] : constants) {
      auto [address, bytes] = nb::cast<std::tuple<uint64_t, int64_t>>(value);
      blobs[nb::cast<std::string>(name)] = {pointer<const void>(address), bytes};
    }
    const CompileOptions o = read_options(read_settings(options));
    make(progress, [&](const Progress& report) {
      return std::make_unique<Session>(text, o, blobs, report, cache, creator);
    });
  }
  PyProgram(const ExecutableFile& file, nb::handle options, nb::object progress) {
    const CompileOptions o = read_options(read_settings(options));
    make(progress,
         [&](const Progress& report) { return std::make_unique<Session>(file, o, report); });
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
        session_->run(in, out, poll);
      } catch (const Interrupted&) {
        interrupted = true;
      }
    }
    if (!interrupted) return;
    if (PyErr_Occurred()) throw nb::python_error();
    throw Interrupted("the run was interrupted");
  }

 private:
  template <typename F>
  void make(const nb::object& progress, const F& session) {
    Progress report;
    if (!progress.is_none())
      report = [&progress](int percent) {
        nb::gil_scoped_acquire gil;
        progress(percent);
      };
    nb::gil_scoped_release release;
    try {
      session_ = session(report);
    } catch (const std::bad_alloc&) {
      throw MemoryError("[memory] no memory left while compiling. Try: a smaller model");
    }
  }

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
  bind_custom(m);
  bind_devices(m);
  m.def("dtypes", &dtypes, "Names of the element types, and whether kernels compute with them.");
  nb::class_<RowInfo>(m, "Row")
      .def_ro("name", &RowInfo::name)
      .def_ro("kind", &RowInfo::kind)
      .def_ro("arity", &RowInfo::arity)
      .def_ro("rule", &RowInfo::rule)
      .def_ro("signature", &RowInfo::signature)
      .def_ro("facts", &RowInfo::facts);
  m.def("rows", &op_rows, "The ops that run natively.");
  m.def(
      "host_is_faster",
      [](const std::string& op, const Dims& shape, size_t results) {
        return host_is_faster(op, shape, results);
      },
      "op"_a, "shape"_a, "results"_a,
      "Whether torch is faster than the op's kernel on an operand of this shape.");
  m.def(
      "narrow",
      [](uint64_t wide, uint64_t narrowed, int64_t count, bool integers) {
        nb::gil_scoped_release release;
        return integers ? narrow(pointer<const int64_t>(wide), pointer<int32_t>(narrowed), count)
                        : narrow(pointer<const double>(wide), pointer<float>(narrowed), count);
      },
      "wide"_a, "narrowed"_a, "count"_a, "integers"_a,
      "Whether all values of 64 bits fit into 32 bits.");
  nb::class_<PyState>(m, "State", "A state of a program.")
      .def_ro("name", &PyState::name, "That users see.")
      .def_ro("dtype", &PyState::dtype)
      .def_ro("shape", &PyState::shape, "On the host.")
      .def_ro("kind", &PyState::kind, "What it is for, such as param, optimizer or random.")
      .def_ro("what", &PyState::what, "Its name without that of its owner, such as momentum.")
      .def_ro("param", &PyState::param, "The parameter it belongs to, or None.")
      .def_ro("group", &PyState::group, "The parameter group it belongs to, or None.");
  nb::class_<PyProgram>(m, "Program")
      .def_prop_ro("inputs",
                   [](PyProgram& p) { return ports(p.session().engine().program().inputs); })
      .def_prop_ro("outputs",
                   [](PyProgram& p) { return ports(p.session().engine().program().outputs); })
      .def_prop_ro("states", [](PyProgram& p) { return states(p.session().engine()); })
      .def(
          "write_state",
          [](PyProgram& p, const std::string& name, uint64_t address, int64_t bytes) {
            p.session().engine().write_state(name, pointer<const void>(address), bytes);
          },
          "name"_a, "address"_a, "bytes"_a)
      .def(
          "read_state",
          [](PyProgram& p, const std::string& name, uint64_t address, int64_t bytes) {
            p.session().engine().read_state(name, pointer<void>(address), bytes);
          },
          "name"_a, "address"_a, "bytes"_a)
      .def("host_calls", [](PyProgram& p) { return host_calls(p.session().engine()); })
      .def("set_host_call", &PyProgram::set_host_call, "index"_a, "function"_a)
      .def("interrupt", [](PyProgram& p) { p.session().engine().interrupt(); })
      .def(
          "set_profiling", [](PyProgram& p, bool on) { p.session().engine().set_profiling(on); },
          "on"_a)
      .def_prop_ro("tensor_names", [](PyProgram& p) { return p.session().tensor_names(); })
      .def_prop_ro(
          "settings",
          [](PyProgram& p) {
            const auto& names = p.session().settings();
            return std::vector<std::string>(names.begin(), names.end());
          },
          "Names of the options that the core has read.")
      .def_prop_ro("last_run_seconds",
                   [](PyProgram& p) { return p.session().engine().last_run_seconds(); })
      .def_prop_ro("times",
                   [](PyProgram& p) {
                     std::vector<std::tuple<double, double, double, double>> out;
                     for (const MicroTimes& t : p.session().engine().times())
                       out.emplace_back(t.input, t.input_complete, t.output, t.output_complete);
                     return out;
                   })
      .def_prop_ro(
          "origin", [](PyProgram& p) { return text(p.session().origin()); },
          "The file that it was read from; empty if it was compiled.")
      .def_prop_ro(
          "notes",
          [](PyProgram& p) {
            nb::list out;
            for (const Note& n : p.session().notes())
              out.append(nb::make_tuple(n.warning, text(n.text)));
            return out;
          },
          "What the user is to be told, and whether as a warning.")
      .def(
          "save",
          [](PyProgram& p, nb::bytes path, const std::string& creator, const std::string& host,
             nb::bytes model) {
            const std::string to(path.c_str(), path.size());
            const std::string_view pickled(model.c_str(), model.size());
            nb::gil_scoped_release release;
            p.session().save(to, {creator, host, pickled});
          },
          "path"_a, "creator"_a, "host"_a, "model"_a)
      .def("summary", [](PyProgram& p) { return p.session().summary(); })
      .def(
          "attach",
          [](PyProgram& p, std::shared_ptr<Lease> lease) { p.session().attach(std::move(lease)); },
          "lease"_a.none(), "The device that it runs on from now; None for none.")
      .def("run", &PyProgram::run, "inputs"_a, "outputs"_a);
  m.def(
      "compile",
      [](const std::string& text, nb::object options, const nb::dict& constants,
         nb::object progress, nb::bytes cache, const std::string& creator) {
        return new PyProgram(text, options, constants, std::move(progress),
                             {cache.c_str(), cache.size()}, creator);
      },
      "text"_a, "options"_a.none(), "constants"_a, "progress"_a = nb::none(),
      "cache"_a = nb::bytes("", 0), "creator"_a = "", nb::rv_policy::take_ownership);
  m.def(
      "load",
      [](const ExecutableFile& file, nb::object options, nb::object progress) {
        return new PyProgram(file, options, std::move(progress));
      },
      "file"_a, "options"_a.none(), "progress"_a = nb::none(), nb::rv_policy::take_ownership,
      "The program of a file.");
  bind_files(m);
}
